/* A fake CUDA driver library for machines without a GPU. The memory of its GPU is memory of the process. The four kernels of
 * agent/diagnostics/ptx_kernels.py run as C functions, chosen by name. The words in the file FAKE_CUDA set the faults:
 * "flip" (a bit in memory), "slow" (copies), "wrong" (a product), "unsteady" (a repeated product), "hang PLACE",
 * "fail PLACE CODE", "full" (little free memory). Signatures follow cuda.h. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOTAL_MIB = 96 };

static char *text(void) {
    static char words[256];
    const char *path = getenv("FAKE_CUDA");
    FILE *file = path ? fopen(path, "r") : NULL;
    words[0] = 0;
    if (file) {
        size_t length = fread(words, 1, sizeof words - 1, file);
        fclose(file);
        words[length] = 0;
    }
    return words;
}

static int says(const char *word) { return strstr(text(), word) != NULL; }

static int injected_error(const char *place) {
    char hangs[64], fails[64];
    snprintf(hangs, sizeof hangs, "hang %s", place);
    snprintf(fails, sizeof fails, "fail %s ", place);
    while (says(hangs)) usleep(20000);
    char *found = strstr(text(), fails);
    return found ? atoi(found + strlen(fails)) : 0;
}

int cuInit(unsigned flags) { (void)flags; return injected_error("init"); }
int cuGetErrorString(int code, const char **words) {
    *words = code == 214 ? "uncorrectable ECC error encountered" : code == 2 ? "out of memory" : "something failed";
    return 0;
}
int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = !visible || strchr(visible, ',') ? 2 : *visible ? 1 : 0;
    return 0;
}
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int size, int device) { (void)device; snprintf(name, size, "A GPU made of memory"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 16 ? 2 : attribute == 36 ? (says("slow") ? 2000000000 : 1000) : attribute == 37 ? 64 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = context; return injected_error("context"); }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuCtxSynchronize(void) { return injected_error("wait"); }
int cuModuleLoadData(void **module, const char *image) {
    *module = module;
    return strstr(image, ".visible .entry product") && strstr(image, ".target sm_50") ? 0 : 218;
}
static const char *names[] = {"fill", "check", "product", "same"};
int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    for (unsigned i = 0; i < 4; i++) if (!strcmp(name, names[i])) { *function = (void *)names[i]; return 0; }
    return 500;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *total = (size_t)TOTAL_MIB << 20;
    *free_bytes = says("full") ? (size_t)20 << 20 : *total;
    return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
    if (size > (size_t)TOTAL_MIB << 20) return 2;
    void *place = calloc(1, size);
    if (!place) return 2;
    *address = (uint64_t)(uintptr_t)place;
    return 0;
}
int cuMemFree_v2(uint64_t address) { free((void *)(uintptr_t)address); return 0; }
int cuMemAllocHost_v2(void **place, size_t size) { *place = calloc(1, size); return 0; }
int cuMemFreeHost(void *place) { free(place); return 0; }

static void flip(uint32_t *words, size_t count) {
    if (says("flip") && count > 1000) words[777] ^= 1u << 5;
}
int cuMemsetD32_v2(uint64_t address, unsigned word, size_t count) {
    uint32_t *words = (uint32_t *)(uintptr_t)address;
    for (size_t i = 0; i < count; i++) words[i] = word;
    flip(words, count);
    return injected_error("set");
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)(uintptr_t)to, from, size); return injected_error("write"); }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)(uintptr_t)from, size); return injected_error("read"); }
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t size) {
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    return injected_error("copy");
}

#define U64(n) (*(uint64_t *)given[n])
#define U32(n) (*(uint32_t *)given[n])
#define WORDS(n) ((uint32_t *)(uintptr_t)U64(n))
#define FLOATS(n) ((float *)(uintptr_t)U64(n))

static void differ(uint64_t *out, uint64_t index, uint32_t found, uint32_t expected) {
    out[0]++;
    if (index < out[1]) out[1] = index;
    out[2] = (uint64_t)found << 32 | expected;
}
static int products;
int cuLaunchKernel(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **given, void **extra) {
    (void)shared; (void)stream; (void)extra;
    if (!gx || gy != 1 || gz != 1 || !bx || by != 1 || bz != 1) return 1;
    if (!strcmp(name, "fill")) {
        for (uint64_t i = 0; i < U64(1); i++) WORDS(0)[i] = (uint32_t)i * U32(2) + U32(3);
        flip(WORDS(0), U64(1));
    } else if (!strcmp(name, "check")) {
        uint64_t *out = (uint64_t *)(uintptr_t)U64(4);
        for (uint64_t i = 0; i < U64(1); i++) {
            uint32_t expected = (uint32_t)i * U32(2) + U32(3);
            if (WORDS(0)[i] != expected) differ(out, i, WORDS(0)[i], expected);
        }
    } else if (!strcmp(name, "product")) {
        uint32_t side = U32(3);
        float *a = FLOATS(0), *b = FLOATS(1), *c = FLOATS(2);
        static float *last;
        if (products++ == 0) {
            memset(c, 0, 4UL * side * side);
            for (uint32_t i = 0; i < side; i++)
                for (uint32_t k = 0; k < side; k++)
                    for (uint32_t j = 0; j < side; j++) c[i * side + j] += a[i * side + k] * b[k * side + j];
            if (says("wrong")) c[5 * side + 3] += 1;
            last = malloc(4UL * side * side);
            memcpy(last, c, 4UL * side * side);
        } else { /* a repetition of the same product: skipped to save time */
            memcpy(c, last, 4UL * side * side);
            if (says("unsteady") && products == 20) c[7] += 1;
        }
    } else {
        uint64_t *out = (uint64_t *)(uintptr_t)U64(3);
        for (uint64_t i = 0; i < U64(2); i++) if (WORDS(0)[i] != WORDS(1)[i]) differ(out, i, WORDS(0)[i], WORDS(1)[i]);
    }
    return injected_error(name);
}
