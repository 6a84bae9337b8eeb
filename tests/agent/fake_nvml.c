/* A fake NVML library for machines without a GPU: two boards, the second split into two MIG instances on request. The words
 * in the file FAKE_NVML set the faults: "init fails", "absent" (the second board), "gone N", "hang", "lost", "xid",
 * "events hang", "mig", "pid N", "recovery N", "ecc N", "remap pending", "remap failed", "clocks N", "link down", "crc N",
 * "no links", "gpm" (activity is measured), "nan" (one metric is not a number), "counters N", "fan N", "busy N" (SM share
 * of the process). Faults of reshaping the second board: "reshape hangs", "reshape in use", "reshape needs a reset",
 * "reshape not permitted", "room for N". Values and layouts follow nvml.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_PERMITTED = 4, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, IN_USE = 19,
    MISMATCH = 18, NO_ROOM = 23,
};

typedef struct { int index; int instance; } device;
static device boards[2] = {{0, -1}, {1, -1}};
static device devices[7] = {{1, 0}, {1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 6}};

/* The profiles of an H100 with 80 GB that these tests use, and the instances of the second board. */
typedef struct { u32 id, slices, most, size, memory_mb; const char *name; u32 starts[7], places; } profile;
static const profile profiles[3] = {
    {19, 1, 7, 1, 9856, "1g.10gb", {0, 1, 2, 3, 4, 5, 6}, 7},
    {14, 2, 3, 2, 19968, "2g.20gb", {0, 2, 4}, 3},
    {9, 3, 2, 4, 40448, "3g.40gb", {0, 4}, 2},
};
typedef struct { int there, computes; const profile *kind; u32 start; } instance;
static instance parts[7];
static u32 mode;

static int says(const char *word) {
    char text[256] = "";
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char *found = strstr(text, word);
    return found ? 1 + atoi(found + strlen(word)) : 0;
}

static int injected_error(void) {
    while (says("hang")) usleep(20000);
    return says("lost") ? LOST : OK;
}

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    if (says("init fails")) return MISMATCH;
    mode = says("mig") ? 1 : 0;
    if (mode) for (u32 i = 0; i < 2; i++) parts[i] = (instance){1, 1, &profiles[2], 4 * i};
    return OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "failed"; }
int nvmlDeviceGetCount_v2(u32 *count) { *count = says("absent") ? 1 : 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, device **handle) {
    if (says("gone ") == (int)index + 1) return LOST;
    *handle = &boards[index];
    return OK;
}
int nvmlSystemGetDriverVersion(char *text, u32 size) { snprintf(text, size, "999.01"); return OK; }
int nvmlDeviceGetUUID(device *gpu, char *text, u32 size) {
    if (gpu->instance >= 0) snprintf(text, size, "MIG-fake-%d-%d", gpu->index, gpu->instance);
    else snprintf(text, size, "GPU-fake-%d", gpu->index);
    return OK;
}
int nvmlDeviceGetName(device *gpu, char *text, u32 size) {
    if (gpu->instance >= 0) snprintf(text, size, "NVIDIA H100 80GB HBM3 MIG %s", parts[gpu->instance].kind->name);
    else snprintf(text, size, "NVIDIA H100 80GB HBM3");
    return OK;
}
int nvmlDeviceGetMinorNumber(device *gpu, u32 *minor) { *minor = gpu->index; return OK; }
int nvmlDeviceGetMemoryInfo(device *gpu, u64 *totals) {
    u64 total = gpu->instance >= 0 ? parts[gpu->instance].kind->memory_mb : 81559;
    totals[0] = total << 20;
    totals[1] = (total - 1000) << 20;
    totals[2] = 1000ULL << 20;
    return injected_error();
}
int nvmlDeviceGetCudaComputeCapability(device *gpu, int *major, int *minor) { (void)gpu; *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetUtilizationRates(device *gpu, u32 *rates) { rates[0] = 55 + gpu->index; rates[1] = 20; return injected_error(); }
int nvmlDeviceGetPowerManagementLimitConstraints(device *gpu, u32 *least, u32 *most) {
    (void)gpu;
    *least = 200000, *most = 700000;
    return OK;
}
int nvmlDeviceGetTemperatureThreshold(device *gpu, int kind, u32 *degrees) {
    (void)gpu;
    *degrees = kind == 1 ? 89 : 95;
    return OK;
}
int nvmlDeviceGetPowerUsage(device *gpu, u32 *milliwatts) { (void)gpu; *milliwatts = 123456; return injected_error(); }
int nvmlDeviceGetTotalEnergyConsumption(device *gpu, u64 *millijoules) { (void)gpu; *millijoules = 777; return injected_error(); }
int nvmlDeviceGetTemperature(device *gpu, int sensor, u32 *degrees) { (void)gpu; (void)sensor; *degrees = 44; return injected_error(); }

typedef struct { u32 pid; u64 memory; u32 gi, ci; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device *gpu, u32 *count, process *found) {
    int pid = says("pid ") - 1;
    if (pid <= 0 || gpu->index != 0) { *count = 0; return OK; }
    if (*count < 1) { *count = 1; return 7; }
    *count = 1;
    found[0] = (process){(u32)pid, 1 << 20, 0, 0};
    return OK;
}

typedef struct { u32 pid; u64 at; u32 sm, memory, encoder, decoder; } process_use;
int nvmlDeviceGetProcessUtilization(device *gpu, process_use *found, u32 *count, u64 since) {
    int pid = says("pid ") - 1, busy = says("busy ");
    (void)since;
    if (gpu->index != 0 || pid <= 0 || !busy) return NOT_FOUND;
    if (!found) { *count = 2; return TOO_SMALL; }
    found[0] = (process_use){(u32)pid, 1, (u32)busy - 1, 0, 0, 0};
    found[1] = (process_use){(u32)pid, 2, (u32)busy + 1, 0, 0, 0};
    *count = 2;
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(device *gpu, u32 *milliwatts) { (void)gpu; *milliwatts = 650000; return injected_error(); }
int nvmlDeviceGetFanSpeed(device *gpu, u32 *percent) {
    (void)gpu;
    int said = says("fan ");
    *percent = said ? (u32)said - 1 : 0;
    return said ? OK : UNSUPPORTED;
}
typedef struct { u32 version, supported; } gpm_support;
typedef struct { u32 metric; int result; double value; char *names[3]; } gpm_metric;
typedef struct { u32 version, count; void *before, *after; gpm_metric metrics[]; } gpm_question;
int nvmlGpmQueryDeviceSupport(device *gpu, gpm_support *found) { (void)gpu; found->supported = says("gpm") ? 1 : 0; return OK; }
int nvmlGpmSampleAlloc(void **sample) { *sample = boards; return OK; }
int nvmlGpmSampleFree(void *sample) { (void)sample; return OK; }
int nvmlGpmSampleGet(device *gpu, void *sample) { (void)gpu; (void)sample; return injected_error(); }
int nvmlGpmMigSampleGet(device *gpu, u32 instance, void *sample) { (void)gpu; (void)instance; (void)sample; return injected_error(); }
int nvmlGpmMetricsGet(gpm_question *asked) {
    for (u32 i = 0; i < asked->count; i++) {
        asked->metrics[i].result = OK;
        asked->metrics[i].value = asked->metrics[i].metric;
        if (asked->metrics[i].metric == 11 && says("nan")) asked->metrics[i].value = 0.0 / 0.0;
    }
    return OK;
}

int nvmlEventSetCreate(void **set) { *set = boards; return OK; }
int nvmlDeviceGetSupportedEventTypes(device *gpu, u64 *kinds) { (void)gpu; *kinds = 8; return OK; }
int nvmlDeviceRegisterEvents(device *gpu, u64 kinds, void *set) { (void)set; return gpu->index == 0 && kinds == 8 ? OK : UNSUPPORTED; }
typedef struct { device *gpu; u64 kind, data; u32 gi, ci; } event;
int nvmlEventSetWait_v2(void *set, event *found, u32 milliseconds) {
    (void)set; (void)milliseconds;
    if (!says("xid")) return TIMEOUT;
    while (says("events hang")) usleep(20000);  /* the event has left the queue */
    unlink(getenv("FAKE_NVML"));
    *found = (event){&boards[0], 8, 79, 0, 0};
    return OK;
}

int nvmlDeviceGetMigMode(device *gpu, u32 *now, u32 *later) {
    if (gpu->index == 0) return UNSUPPORTED;
    *now = *later = mode;
    return OK;
}
int nvmlDeviceSetMigMode(device *gpu, u32 wanted, u32 *status) {
    if (gpu->index == 0) return UNSUPPORTED;
    *status = OK;
    if (says("reshape not permitted")) return NOT_PERMITTED;
    if (says("reshape in use")) *status = IN_USE;
    else if (!says("reshape needs a reset")) mode = wanted;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device *gpu, u32 *count) { (void)gpu; *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device *gpu, u32 index, device **handle) {
    (void)gpu;
    for (int i = 0; mode && i < 7; i++)
        if (parts[i].there && parts[i].computes && !index--) {
            *handle = &devices[i];
            return OK;
        }
    return NOT_FOUND;
}
typedef struct { u32 counts[6], slices, compute_slices; u64 memory_mb; } attributes;
int nvmlDeviceGetAttributes_v2(device *gpu, attributes *found) {
    memset(found, 0, sizeof *found);
    found->slices = found->compute_slices = parts[gpu->instance].kind->slices;
    found->memory_mb = parts[gpu->instance].kind->memory_mb;
    return OK;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12040; return OK; }
typedef struct { char legacy[16]; u32 domain, bus, device, pci, subsystem; char id[32]; } pci;
int nvmlDeviceGetPciInfo_v3(device *gpu, pci *found) {
    memset(found, 0, sizeof *found);
    snprintf(found->id, sizeof found->id, "00000000:%X:00.0", 0x1A + gpu->index);
    return OK;
}
int nvmlDeviceGetCurrPcieLinkWidth(device *gpu, u32 *lanes) { (void)gpu; *lanes = 8; return OK; }
int nvmlDeviceGetMaxPcieLinkWidth(device *gpu, u32 *lanes) { (void)gpu; *lanes = 16; return OK; }
int nvmlDeviceGetMaxPcieLinkGeneration(device *gpu, u32 *generation) { (void)gpu; *generation = 5; return OK; }
int nvmlDeviceGetTopologyCommonAncestor(device *one, device *other, int *level) { (void)one; (void)other; *level = 40; return OK; }
int nvmlDeviceGetNvLinkState(device *gpu, u32 link, u32 *active) {
    if (link > 1 || says("no links")) return UNSUPPORTED;
    *active = !(says("link down") && gpu->index == 0 && link == 1);
    return injected_error();
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device *gpu, u32 link, int *kind) { (void)gpu; (void)link; *kind = 0; return OK; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device *gpu, u32 link, pci *found) {
    (void)link;
    return nvmlDeviceGetPciInfo_v3(&boards[1 - gpu->index], found);
}
int nvmlDeviceGetNvLinkErrorCounter(device *gpu, u32 link, int counter, u64 *count) {
    int said = says("crc ");
    *count = gpu->index == 0 && link == 0 && counter == 2 && said ? (u64)said - 1 : 0;
    return OK;
}
int nvmlDeviceGetRemappedRows(device *gpu, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    (void)gpu;
    *corrected = 1;
    *uncorrected = 2;
    *pending = says("remap pending") ? 1 : 0;
    *failed = says("remap failed") ? 1 : 0;
    return injected_error();
}
int nvmlDeviceGetTotalEccErrors(device *gpu, int kind, int counter, u64 *count) {
    int said = says("ecc ");
    *count = gpu->index == 0 && kind == 1 && counter == 0 && said ? (u64)said - 1 : 0;
    return injected_error();
}
int nvmlDeviceGetCurrentClocksEventReasons(device *gpu, u64 *reasons) {
    int said = says("clocks ");
    *reasons = gpu->index == 0 && said ? (u64)said - 1 : 0;
    return injected_error();
}
typedef struct { u32 field, scope; long long timestamp, latency; int kind, result; union { u32 small; u64 large; double real; } value; } field;
int nvmlDeviceGetFieldValues(device *gpu, int count, field *fields) {
    static u64 sent;
    for (int i = 0; i < count; i++) {
        fields[i].result = OK;
        if (fields[i].field == 230) {
            int said = says("recovery ");
            fields[i].kind = 1;
            fields[i].value.small = gpu->index == 0 && said ? said - 1 : 0;
        } else if ((fields[i].field == 138 || fields[i].field == 139) && fields[i].scope == 0xFFFFFFFF) {
            fields[i].kind = 3;
            fields[i].value.large = sent += 1000;
        } else if (fields[i].scope == 0 && says("counters ") && (fields[i].field == 197 || fields[i].field == 198 ||
                   fields[i].field == 94 || fields[i].field == 74 || fields[i].field == 142)) {
            fields[i].kind = 3;
            fields[i].value.large = (u64)(says("counters ") - 1) * 1000 + fields[i].field;
        } else fields[i].result = UNSUPPORTED;
    }
    return injected_error();
}
int nvmlDeviceGetGpuInstanceId(device *gpu, u32 *id) { *id = 1 + gpu->instance; return OK; }

typedef struct { u32 version, id, peers, slices, most, processors, copies, decoders, encoders, jpegs, flows; u64 memory_mb; char name[96]; } offer;
int nvmlDeviceGetGpuInstanceProfileInfoV(device *gpu, u32 number, offer *found) {
    if (gpu->index == 0 || number > 2) return UNSUPPORTED;
    const profile *kind = &profiles[number];
    found->id = kind->id;
    found->slices = kind->slices;
    found->most = kind->most;
    found->memory_mb = kind->memory_mb;
    snprintf(found->name, sizeof found->name, "MIG %s", kind->name);
    return OK;
}
static const profile *named(u32 id) {
    for (int i = 0; i < 3; i++) if (profiles[i].id == id) return &profiles[i];
    return NULL;
}
typedef struct { u32 start, size; } place;
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(device *gpu, u32 id, place *found, u32 *count) {
    const profile *kind = named(id);
    if (!kind || !mode) return UNSUPPORTED; /* like the real library: only while MIG is on */
    (void)gpu;
    if (*count < kind->places) return TOO_SMALL;
    *count = kind->places;
    for (u32 i = 0; i < kind->places; i++) found[i] = (place){kind->starts[i], kind->size};
    return OK;
}
static int make(const profile *kind, u32 start, instance **made) {
    int used = 0, limit = says("room for ");
    while (says("reshape hangs")) usleep(20000);
    for (int i = 0; i < 7; i++) {
        used += parts[i].there;
        if (parts[i].there && parts[i].start < start + kind->size && start < parts[i].start + parts[i].kind->size) return NO_ROOM;
    }
    if (limit && used >= limit - 1) return NO_ROOM;
    for (int i = 0; i < 7; i++)
        if (!parts[i].there) {
            parts[i] = (instance){1, 0, kind, start};
            *made = &parts[i];
            return OK;
        }
    return NO_ROOM;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(device *gpu, u32 id, const place *where, instance **made) {
    const profile *kind = named(id);
    (void)gpu;
    return !kind || !mode || where->size != kind->size ? INVALID : make(kind, where->start, made);
}
int nvmlDeviceCreateGpuInstance(device *gpu, u32 id, instance **made) {
    const profile *kind = named(id);
    (void)gpu;
    if (!kind || !mode) return INVALID;
    for (u32 i = kind->places; i-- > 0;) if (make(kind, kind->starts[i], made) == OK) return OK;
    return NO_ROOM;
}
int nvmlDeviceGetGpuInstances(device *gpu, u32 id, instance **found, u32 *count) {
    u32 number = 0;
    (void)gpu;
    for (int i = 0; i < 7; i++) if (parts[i].there && parts[i].kind->id == id && number < *count) found[number++] = &parts[i];
    *count = number;
    return OK;
}
int nvmlDeviceGetGpuInstanceById(device *gpu, u32 id, instance **found) {
    (void)gpu;
    if (id < 1 || id > 7 || !parts[id - 1].there) return NOT_FOUND;
    *found = &parts[id - 1];
    return OK;
}
typedef struct { device *gpu; u32 id, profile; place where; } about;
int nvmlGpuInstanceGetInfo(instance *part, about *found) {
    *found = (about){&boards[1], 1 + (u32)(part - parts), part->kind->id, {part->start, part->kind->size}};
    return OK;
}
int nvmlGpuInstanceDestroy(instance *part) {
    if (part->computes) return IN_USE;
    part->there = 0;
    return OK;
}
typedef struct { u32 id, slices, most, processors, copies, decoders, encoders, jpegs, flows; } compute;
int nvmlGpuInstanceGetComputeInstanceProfileInfo(instance *part, u32 number, u32 engine, compute *found) {
    memset(found, 0, sizeof *found);
    if (number > 2 || number + 1 > part->kind->slices || engine) return UNSUPPORTED;
    found->id = number;
    found->slices = number + 1;
    return OK;
}
int nvmlGpuInstanceCreateComputeInstance(instance *part, u32 id, instance **made) {
    if (part->computes || id + 1 != part->kind->slices) return NO_ROOM;
    part->computes = 1;
    *made = part;
    return OK;
}
int nvmlGpuInstanceGetComputeInstances(instance *part, u32 id, instance **found, u32 *count) {
    *count = part->computes && id + 1 == part->kind->slices;
    if (*count) found[0] = part;
    return OK;
}
int nvmlComputeInstanceDestroy(instance *part) { part->computes = 0; return OK; }
