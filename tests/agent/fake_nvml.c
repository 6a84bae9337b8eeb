/* A library in NVML's place for machines without a GPU: two boards, the second split in two on demand. What goes wrong is said
 * by words in the file that FAKE_NVML names: "hang", "lost", "xid", "mig", "pid N", "recovery N", "ecc N", "remap pending", "remap failed",
 * "clocks N", "link down", "crc N", "no links". Figures and layouts follow nvml.h. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, LOST = 15 };

typedef struct { int index; int instance; } device;
static device boards[2] = {{0, -1}, {1, -1}};
static device instances[2] = {{1, 0}, {1, 1}};

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

static int trouble(void) {
    while (says("hang")) usleep(20000);
    return says("lost") ? LOST : OK;
}

int nvmlInitWithFlags(u32 flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : "failed"; }
int nvmlDeviceGetCount_v2(u32 *count) { *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, device **handle) { *handle = &boards[index]; return OK; }
int nvmlSystemGetDriverVersion(char *text, u32 size) { snprintf(text, size, "999.01"); return OK; }
int nvmlDeviceGetUUID(device *gpu, char *text, u32 size) {
    if (gpu->instance >= 0) snprintf(text, size, "MIG-fake-%d-%d", gpu->index, gpu->instance);
    else snprintf(text, size, "GPU-fake-%d", gpu->index);
    return OK;
}
int nvmlDeviceGetName(device *gpu, char *text, u32 size) {
    snprintf(text, size, gpu->instance >= 0 ? "NVIDIA H100 80GB HBM3 MIG 3g.40gb" : "NVIDIA H100 80GB HBM3");
    return OK;
}
int nvmlDeviceGetMinorNumber(device *gpu, u32 *minor) { *minor = gpu->index; return OK; }
int nvmlDeviceGetMemoryInfo(device *gpu, u64 *totals) {
    u64 total = gpu->instance >= 0 ? 40448 : 81559;
    totals[0] = total << 20;
    totals[1] = (total - 1000) << 20;
    totals[2] = 1000ULL << 20;
    return trouble();
}
int nvmlDeviceGetCudaComputeCapability(device *gpu, int *major, int *minor) { (void)gpu; *major = 9; *minor = 0; return OK; }
int nvmlDeviceGetUtilizationRates(device *gpu, u32 *rates) { rates[0] = 55 + gpu->index; rates[1] = 20; return trouble(); }
int nvmlDeviceGetPowerUsage(device *gpu, u32 *milliwatts) { (void)gpu; *milliwatts = 123456; return trouble(); }
int nvmlDeviceGetTotalEnergyConsumption(device *gpu, u64 *millijoules) { (void)gpu; *millijoules = 777; return trouble(); }
int nvmlDeviceGetTemperature(device *gpu, int sensor, u32 *degrees) { (void)gpu; (void)sensor; *degrees = 44; return trouble(); }

typedef struct { u32 pid; u64 memory; u32 gi, ci; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device *gpu, u32 *count, process *found) {
    int pid = says("pid ") - 1;
    if (pid <= 0 || gpu->index != 0) { *count = 0; return OK; }
    if (*count < 1) { *count = 1; return 7; }
    *count = 1;
    found[0] = (process){(u32)pid, 1 << 20, 0, 0};
    return OK;
}

int nvmlEventSetCreate(void **set) { *set = boards; return OK; }
int nvmlDeviceGetSupportedEventTypes(device *gpu, u64 *kinds) { (void)gpu; *kinds = 8; return OK; }
int nvmlDeviceRegisterEvents(device *gpu, u64 kinds, void *set) { (void)set; return gpu->index == 0 && kinds == 8 ? OK : UNSUPPORTED; }
typedef struct { device *gpu; u64 kind, data; u32 gi, ci; } event;
int nvmlEventSetWait_v2(void *set, event *found, u32 milliseconds) {
    (void)set; (void)milliseconds;
    if (!says("xid")) return TIMEOUT;
    unlink(getenv("FAKE_NVML"));
    *found = (event){&boards[0], 8, 79, 0, 0};
    return OK;
}

int nvmlDeviceGetMigMode(device *gpu, u32 *now, u32 *later) {
    if (gpu->index == 0) return UNSUPPORTED;
    *now = *later = says("mig") ? 1 : 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(device *gpu, u32 *count) { (void)gpu; *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device *gpu, u32 index, device **handle) {
    (void)gpu;
    if (index > 1) return NOT_FOUND;
    *handle = &instances[index];
    return OK;
}
typedef struct { u32 counts[6], slices, compute_slices; u64 memory_mb; } attributes;
int nvmlDeviceGetAttributes_v2(device *gpu, attributes *found) {
    (void)gpu;
    memset(found, 0, sizeof *found);
    found->slices = found->compute_slices = 3;
    found->memory_mb = 40448;
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
    return trouble();
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
    return trouble();
}
int nvmlDeviceGetTotalEccErrors(device *gpu, int kind, int counter, u64 *count) {
    int said = says("ecc ");
    *count = gpu->index == 0 && kind == 1 && counter == 0 && said ? (u64)said - 1 : 0;
    return trouble();
}
int nvmlDeviceGetCurrentClocksEventReasons(device *gpu, u64 *reasons) {
    int said = says("clocks ");
    *reasons = gpu->index == 0 && said ? (u64)said - 1 : 0;
    return trouble();
}
typedef struct { u32 field, scope; long long moment, took; int kind, result; union { u32 small; u64 large; double real; } value; } field;
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
        } else fields[i].result = UNSUPPORTED;
    }
    return trouble();
}
int nvmlDeviceGetGpuInstanceId(device *gpu, u32 *id) { *id = 1 + gpu->instance; return OK; }
