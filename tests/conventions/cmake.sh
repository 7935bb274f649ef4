#!/bin/sh
# cmake.sh BUILD HELLO.c HELLO.cpp: installs into an empty directory, and builds a program of C and one of C++ there with
# CMake, which finds the library by its package configuration. A request for another version finds nothing. Skipped
# (77) where CMake is missing.
set -eu
build=$1 hello=$2 hello_cxx=$3
command -v cmake >/dev/null || { echo "skipped: cmake is not installed" && exit 77; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it

meson install -C "$build" --no-rebuild --quiet --destdir "$root"
config=$(dirname "$(find "$root" -name tapegradConfig.cmake)")
version=$(sed -n 's/.*PACKAGE_VERSION "\(.*\)".*/\1/p' "$config/tapegradConfigVersion.cmake")

mkdir "$root/project"
cp "$hello" "$root/project/hello.c"
cp "$hello_cxx" "$root/project/hello.cpp"
# shellcheck disable=SC2016 # CMake's own variables
printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(user C CXX)' \
    'find_package(tapegrad ${WANTED} REQUIRED)' \
    'foreach(language c cpp)' \
    '  add_executable(hello_${language} hello.${language})' \
    '  target_link_libraries(hello_${language} PRIVATE tapegrad::tapegrad)' \
    '  target_compile_features(hello_${language} PRIVATE cxx_std_17)' \
    'endforeach()' >"$root/project/CMakeLists.txt"
configure() { cmake -S "$root/project" -B "$root/$1" -Dtapegrad_DIR="$config" -DWANTED="$2" >"$root/log" 2>&1; }

configure build "$version" || { cat "$root/log" && exit 1; }
cmake --build "$root/build" >"$root/log" 2>&1 || { cat "$root/log" && exit 1; }
"$root/build/hello_c"
"$root/build/hello_cpp"

configure minor "${version%.*}" || { cat "$root/log" && exit 1; }
for other in 0.1 99.0 "$version.1"; do
    if configure "$other" "$other"; then
        echo "find_package(tapegrad $other) found version $version"
        exit 1
    fi
    grep -q "version: $version" "$root/log" || { cat "$root/log" && exit 1; }
done
