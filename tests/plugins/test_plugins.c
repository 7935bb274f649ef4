/* Plugins that are missing, or that the library must refuse, and what the messages say. The program is linked with the
 * shared library, which loads plugins. TG_FAKES names the folder of the build with libfake_*.so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tapegrad/extend.h>
#include <tapegrad/nccl.h>
#include <tapegrad/tapegrad.h>
#include <tapegrad/tokenizer.h>
#include <tapegrad/world.h>

#include "check_main.h"

#define TAKES(ctx, wanted, text)                                                                                       \
    do {                                                                                                               \
        ck_assert_msg(tg_ctx_status(ctx) == (wanted), "%s: %s", tg_status_name(tg_ctx_status(ctx)),                    \
                      tg_ctx_message(ctx));                                                                            \
        ck_assert_msg(strstr(tg_ctx_message(ctx), (text)) != NULL, "no '%s' in: %s", text, tg_ctx_message(ctx));       \
    } while (0)

/* A folder of plugins, which TAPEGRAD_PLUGINS names. */
typedef struct folder {
    char path[64], file[128];
} folder;

/* Makes a folder in which plugin `name` is a link to the file `fake` of the build; NULL: the folder is empty. */
static folder folder_of(const char *name, const char *fake) {
    folder f = {"/tmp/tapegrad-plugins-XXXXXX", ""};
    char target[512];
    ck_assert_ptr_nonnull(mkdtemp(f.path));
    snprintf(f.file, sizeof f.file, "%s/libtapegrad-%s.so", f.path, name);
    snprintf(target, sizeof target, "%s/%s", getenv("TG_FAKES"), fake ? fake : "");
    if (fake) ck_assert_int_eq(symlink(target, f.file), 0);
    ck_assert_int_eq(setenv("TAPEGRAD_PLUGINS", f.path, 1), 0);
    return f;
}

static void folder_end(const folder *f) {
    unlink(f->file);
    ck_assert_int_eq(rmdir(f->path), 0);
    unsetenv("TAPEGRAD_PLUGINS");
}

/* A context on device "cuda" with this plugin fails with these words and the name of the file; a context on the CPU is
 * made as ever. */
static void refused(const char *fake, const char *text) {
    folder f = folder_of("cuda", fake);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda:1", .threads = 1)), *cpu = tg_ctx_new(TG_CONFIG(.threads = 1));
    TAKES(ctx, TG_ERR_DEVICE, text);
    TAKES(ctx, TG_ERR_DEVICE, f.path);
    TAKES(ctx, TG_ERR_DEVICE, "libtapegrad-cuda.so");
    ck_assert_int_eq(tg_ctx_status(cpu), TG_OK);
    tg_ctx_free(ctx);
    tg_ctx_free(cpu);
    folder_end(&f);
}

START_TEST(a_missing_plugin_is_named_with_its_folder) { refused(NULL, "which TAPEGRAD_PLUGINS names"); }
END_TEST

START_TEST(a_file_that_is_no_library_is_refused_with_the_loaders_words) {
    refused("fake_text.so", "cannot be loaded: ");
    refused("fake_text.so", "invalid ELF header");
}
END_TEST

START_TEST(a_library_that_is_no_plugin_is_refused) { refused("libfake_none.so", "undefined symbol: tg_cuda_plugin"); }
END_TEST

START_TEST(a_plugin_of_another_version_is_refused) {
    refused("libfake_version.so", "is of version 0.0.9, expected " TG_VERSION);
}
END_TEST

START_TEST(a_plugin_of_another_copy_of_the_library_is_refused) {
    refused("libfake_library.so", "uses another copy of libtapegrad.so");
}
END_TEST

static int no_broadcast(void *user, void *data, size_t bytes) { return (void)user, (void)data, (void)bytes, 1; }

/* A table of the caller's whose device is named "cuda". */
static tg_device_ops named_cuda(void) {
    tg_ctx *cpu = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_device_ops ops = *tg_ctx_ops(cpu);
    tg_ctx_free(cpu);
    ops.name = "cuda";
    return ops;
}

START_TEST(nccl_is_sought_when_ranks_meet) {
    folder f = folder_of("nccl", NULL);
    tg_device_ops ops = named_cuda();
    tg_ctx *ctx = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
    tg_comm *alone = tg_comm_nccl_new_by(ctx, 0, 1, no_broadcast, NULL); /* one rank needs no NCCL */
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_comm_nccl_new_by(ctx, 0, 2, no_broadcast, NULL);
    TAKES(ctx, TG_ERR_UNSUPPORTED, "tg_comm_nccl_new_by: plugin libtapegrad-nccl.so is not in /tmp/");
    tg_comm_free(alone);
    tg_ctx_free(ctx);
    folder_end(&f);
}
END_TEST

/* Without TAPEGRAD_PLUGINS the plugins of this build are found, where it has them; else both folders are named. */
START_TEST(plugins_are_sought_next_to_the_library) {
    tg_device_ops ops = named_cuda();
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda", .threads = 1));
    tg_ctx *own = tg_ctx_new_on(&ops, TG_CONFIG(.threads = 1));
    unsetenv("TAPEGRAD_PLUGINS");
    tg_comm_nccl_new_by(own, 0, 2, no_broadcast, NULL);
#ifdef TG_HAVE_CUDA
    ck_assert_msg(!strstr(tg_ctx_message(ctx), "libtapegrad-cuda.so"), "%s", tg_ctx_message(ctx));
#else
    TAKES(ctx, TG_ERR_DEVICE, "plugin libtapegrad-cuda.so is neither in /");
    TAKES(ctx, TG_ERR_DEVICE, "/src/tapegrad nor in /");
#endif
#ifdef TG_HAVE_NCCL
    TAKES(own, TG_ERR_DEVICE, "tg_comm_nccl_new_by: the context's device \"cuda\" is not that of");
#else
    TAKES(own, TG_ERR_UNSUPPORTED, "plugin libtapegrad-nccl.so is neither in /");
#endif
    tg_ctx_free(own);
    tg_ctx_free(ctx);
}
END_TEST

/* No context has been made on device "cuda" when this runs first, and the CPU needs no plugin. */
START_TEST(a_context_of_the_cpu_loads_nothing) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tape *t = tg_tape_new(ctx);
    tg_sum(t, tg_full(t, TG_F32, TG_SHAPE(3), 1), TG_ALL_DIMS, false);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    for (int i = 0; i < 5; i++) {
        static const char *const never[] = {"libtapegrad-cuda.so", "libcudart.so.13", "libnccl.so.2", "libdw.so.1",
                                            "libtapegrad-text.so"};
        ck_assert_msg(!dlopen(never[i], RTLD_LAZY | RTLD_NOLOAD), "%s is loaded", never[i]);
    }
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* Under a launcher whose ranks meet over TCP, or use MPI. */
START_TEST(ranks_whose_transport_is_missing_say_how_to_get_it) {
    static const char *const texts[] = {
        [TG_WORLD_TCP] = "tg_comm_tcp_new: plugin libtapegrad-tcp.so is not in ",
        [TG_WORLD_MPI] = "tg_comm_world_new: plugin libtapegrad-mpi.so is not in ",
    };
    for (int t = TG_WORLD_MPI; t <= TG_WORLD_TCP; t++) {
        folder f = folder_of("tcp", NULL);
        tg_world_info info = TG_WORLD_INFO();
        info.transport = (tg_world_transport)t;
        info.ranks = 2;
        info.port = info.ports = 1;
        strcpy(info.host, "localhost");
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
        tg_comm_free(tg_comm_world_new(ctx, &info));
        TAKES(ctx, TG_ERR_UNSUPPORTED, texts[t]);
        tg_ctx_free(ctx);
        folder_end(&f);
    }
}
END_TEST

START_TEST(tokenizers_say_which_plugin_they_need) {
    folder f = folder_of("text", NULL);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    ck_assert_ptr_null(tg_bpe_new(ctx, NULL));
    TAKES(ctx, TG_ERR_UNSUPPORTED, "tg_bpe_new: plugin libtapegrad-text.so is not in ");
    tg_ctx_clear(ctx);
    tg_tokenizer *k = tg_tokenizer_new_bytes(ctx); /* which needs none */
    ck_assert_int_eq(tg_tokenizer_size(k), 256);
    tg_tokenizer_free(k);
    tg_ctx_free(ctx);
    folder_end(&f);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_context_of_the_cpu_loads_nothing,
        a_missing_plugin_is_named_with_its_folder,
        a_file_that_is_no_library_is_refused_with_the_loaders_words,
        a_library_that_is_no_plugin_is_refused,
        a_plugin_of_another_version_is_refused,
        a_plugin_of_another_copy_of_the_library_is_refused,
        nccl_is_sought_when_ranks_meet,
        ranks_whose_transport_is_missing_say_how_to_get_it,
        tokenizers_say_which_plugin_they_need,
        plugins_are_sought_next_to_the_library,
    };
    return tg_check_main("plugins", tests, sizeof tests / sizeof *tests);
}
