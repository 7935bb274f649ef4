# Functions that the scripts here and .ci/run share: they install what is missing, and make build directories.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fortunes=/usr/share/games/fortunes

say() { printf '%s\n' "$*" >&2; }

# have PACKAGE: succeeds if what the Debian package provides is installed, by whatever means.
have() {
    case $1 in
    gcc) command -v "${CC:-cc}" ;;
    g++) command -v "${CXX:-c++}" ;;
    libc6-dev) [ -e /usr/include/stdio.h ] ;;
    ninja-build) command -v ninja ;;
    libjansson-dev) pkg-config --exists jansson ;;
    zlib1g-dev) pkg-config --exists zlib ;;
    libzstd-dev) pkg-config --exists libzstd ;;
    libdw-dev) pkg-config --exists libdw ;;
    libjemalloc2) compgen -G '/usr/lib*/*/libjemalloc.so.2' || compgen -G '/usr/lib*/libjemalloc.so.2' ;;
    check) pkg-config --exists check ;;
    libuv1-dev) pkg-config --exists libuv ;;
    libedit-dev) pkg-config --exists libedit ;;
    libpcre2-dev) pkg-config --exists libpcre2-8 ;;
    libutf8proc-dev) pkg-config --exists libutf8proc ;;
    munge) PATH=$PATH:/usr/sbin command -v munged ;;
    slurmctld | slurmd) PATH=$PATH:/usr/sbin command -v "$1" ;;
    slurm-client) command -v srun ;;
    python3-venv) python3 -c 'import ensurepip' ;;
    python3-cffi | python3-numpy | python3-pytest) /usr/bin/python3 -c "import ${1#python3-}" ;;
    python3-dev) [ -e "$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ;;
    fortunes) [ -e $fortunes/fortunes ] && [ -e $fortunes/literature ] ;;
    wamerican) [ -e /usr/share/dict/american-english ] ;;
    wngerman) [ -e /usr/share/dict/ngerman ] ;;
    wfrench) [ -e /usr/share/dict/french ] ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

# need PACKAGE...: installs the packages that are missing. If it may not, prints the command that does, and ends the
# script with status 2.
need() {
    local missing=() package as_root=()
    for package in "$@"; do
        have "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        say "missing: ${missing[*]} (names of Debian packages); install them and run this again"
        exit 2
    fi
    if [ "$(id -u)" != 0 ]; then
        if ! sudo -n true 2>/dev/null; then
            say "missing packages; run this once, then try again:"
            say "  sudo apt-get update && sudo apt-get install -y ${missing[*]}"
            exit 2
        fi
        as_root=(sudo -n)
    fi
    say "installing: ${missing[*]}"
    ${as_root[@]+"${as_root[@]}"} apt-get update -qq
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# shellcheck disable=SC2034 # used by scripts that include this
build_needs=(gcc libc6-dev meson ninja-build pkg-config libjansson-dev libdw-dev zlib1g-dev libzstd-dev libpcre2-dev
    libutf8proc-dev libedit-dev)
# shellcheck disable=SC2034
test_needs=(check g++ valgrind wamerican wngerman wfrench python3-dev python3-cffi python3-numpy python3-pytest
    libuv1-dev munge slurmctld slurmd slurm-client)

# Device cuda is built only if there is a GPU, and only for that GPU, because nvcc takes a minute or two.
# shellcheck disable=SC2034
cuda_options=(-Dcuda=disabled)
if gpu_arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) && [ -n "$gpu_arch" ]; then
    gpu_arch=$(head -n 1 <<<"$gpu_arch" | tr -d .)
    cuda_options=(-Dcuda=auto "-Dgpu_arch=$gpu_arch")
fi

# configure NAME [MESON OPTION...]: makes the build directory NAME. If it exists with other options, changes them. The
# file NAME/options records them.
configure() {
    local dir=$root/$1 option again=()
    shift
    if [ -e "$dir/build.ninja" ]; then
        for option; do grep -qsxF -- "$option" "$dir/options" || again=(--reconfigure); done
        [ ${#again[@]} -gt 0 ] || return 0
    fi
    meson setup ${again[@]+"${again[@]}"} "$dir" "$root" "$@" >"$dir.log" 2>&1 || {
        cat "$dir.log" >&2
        return 1
    }
    for option; do
        [ ! -e "$dir/options" ] || sed -i "/^${option%%=*}=/d" "$dir/options"
        echo "$option" >>"$dir/options"
    done
    rm -f "$dir.log"
}

# build NAME [TARGET...]: builds targets, or everything, in the build directory NAME.
build() {
    local dir=$root/$1
    shift
    if [ -e "$dir/ninja.log" ]; then say "building ${dir#"$root"/}"; else
        say "building ${dir#"$root"/}; the first time takes many minutes (progress: tail -f ${dir#"$root"/}/ninja.log)"
    fi
    ninja -C "$dir" "$@" >"$dir/ninja.log" 2>&1 || {
        grep -v '^\[' "$dir/ninja.log" | tail -n 60 >&2
        return 1
    }
}

# fortunes_text: prints Debian's fortunes in the order of file names, without index files (.dat) and links (.u8).
fortunes_text() {
    local file
    for file in "$fortunes"/*; do
        case $file in *.dat | *.u8) ;; *) [ ! -f "$file" ] || cat "$file" ;; esac
    done
}

# environment NAME PACKAGE...: sets $python to the interpreter of the virtual environment NAME in build, or in the folder
# TG_VENVS, which several clones can share. If it does not exist, makes it with the newest versions of the packages on PyPI.
environment() {
    local dir=${TG_VENVS:-$root/build}/$1
    shift
    python=$dir/bin/python
    [ ! -e "$dir/complete" ] || return 0
    need python3-venv
    say "making $dir with $* from PyPI (some GB, some minutes)"
    rm -rf "$dir"
    mkdir -p "${dir%/*}"
    # The Python package is built for the system's Python, where there is one.
    "$([ -x /usr/bin/python3 ] && echo /usr/bin/python3 || echo python3)" -m venv "$dir"
    "$dir/bin/pip" install --quiet --disable-pip-version-check "$@"
    touch "$dir/complete"
}
