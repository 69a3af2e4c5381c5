/* A fake of NVIDIA's management library with four devices, for tests without a GPU.
 *
 * It has the ABI of nvml.h for the calls that the exporter makes, so that pynvml's own ctypes path is exercised. Figures
 * are made up. A test sets the return code of a call with fake_fail(device, call, code) and a figure with
 * fake_set(device, name, value); device -1 means the library as a whole. fake_reset() restores the beginning.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define DEVICES 4
#define RULES 128
#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

typedef struct { int index, start; } Device;
typedef struct { int device; char name[64]; long long value; } Rule;
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int field, scope; long long timestamp, latency; int type, code; union { double d; unsigned int u; unsigned long long ull; } value; } FieldValue;
typedef struct { Device *device; unsigned long long type, data; unsigned int gpu_instance, compute_instance; } EventData;

/* Two sets, used in turn: a handle from before the last start is void, as it is with the real library. */
static Device handles[2][DEVICES + 2];
#define devices (handles[starts % 2])
#define mig (handles[starts % 2] + DEVICES)
static Rule failures[RULES], figures[RULES];
static int failure_count, figure_count, starts, shutdowns, calls;

static const char *uuids[DEVICES] = {
    "GPU-af7b61d8-0000-0000-0000-000000000000", "GPU-af7b99aa-0000-0000-0000-000000000001",
    "GPU-3c1d0000-0000-0000-0000-000000000002", "GPU-77770000-0000-0000-0000-000000000003"};

static void put(Rule *rules, int *count, int device, const char *name, long long value) {
    for (int i = 0; i < *count; i++)
        if (rules[i].device == device && !strcmp(rules[i].name, name)) { rules[i].value = value; return; }
    if (*count == RULES) return;
    rules[*count].device = device;
    rules[*count].value = value;
    snprintf(rules[*count].name, sizeof rules[0].name, "%s", name);
    (*count)++;
}

static long long get(const Rule *rules, int count, int device, const char *name, long long otherwise) {
    for (int i = 0; i < count; i++)
        if (rules[i].device == device && !strcmp(rules[i].name, name)) return rules[i].value;
    return otherwise;
}

EXPORT void fake_fail(int device, const char *call, int code) { put(failures, &failure_count, device, call, code); }
EXPORT void fake_set(int device, const char *name, long long value) { put(figures, &figure_count, device, name, value); }
EXPORT int fake_starts(void) { return starts; }
EXPORT int fake_shutdowns(void) { return shutdowns; }
EXPORT int fake_calls(void) { return calls; }
EXPORT void fake_reset(void) { failure_count = figure_count = starts = shutdowns = calls = 0; }

static int failing(int device, const char *call) {
    calls++;
    if (starts <= shutdowns && strcmp(call, "nvmlInitWithFlags")) return UNINITIALIZED;
    return (int)get(failures, failure_count, device, call, OK);
}
static long long figure(const Device *device, const char *name, long long otherwise) {
    return get(figures, figure_count, device->index, name, otherwise);
}
#define CHECK(device) do { \
    if ((device)->start != starts) return INVALID; \
    int code = failing((device)->index, __func__); \
    if (code) return code; \
} while (0)
#define CHECK_LIBRARY() do { int code = failing(-1, __func__); if (code) return code; } while (0)

EXPORT int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    CHECK_LIBRARY();
    starts++;
    for (int i = 0; i < DEVICES + 2; i++) {
        handles[starts % 2][i].index = i < DEVICES ? i : 100 + i - DEVICES;
        handles[starts % 2][i].start = starts;
    }
    return OK;
}
EXPORT int nvmlShutdown(void) { CHECK_LIBRARY(); shutdowns++; return OK; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "fake error"; }

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count) {
    CHECK_LIBRARY();
    *count = (unsigned int)get(figures, figure_count, -1, "count", DEVICES);
    return OK;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **device) {
    if (index >= DEVICES) return INVALID;
    CHECK(&devices[index]);
    *device = &devices[index];
    return OK;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    CHECK_LIBRARY();
    for (int i = 0; i < DEVICES; i++)
        if (!strcmp(uuid, uuids[i])) { CHECK(&devices[i]); *device = &devices[i]; return OK; }
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "MIG-0000000%d", i);
        if (!strcmp(uuid, name)) { *device = &mig[i]; return OK; }
    }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned int length) {
    CHECK(device);
    if (device->index >= 100) snprintf(uuid, length, "MIG-0000000%d", device->index - 100);
    else snprintf(uuid, length, "%s", uuids[device->index]);
    return OK;
}
EXPORT int nvmlDeviceGetName(Device *device, char *name, unsigned int length) {
    CHECK(device);
    snprintf(name, length, "%s", figure(device, "unified", 0) ? "NVIDIA GB10" : "NVIDIA H200");
    return OK;
}
EXPORT int nvmlDeviceGetMigMode(Device *device, unsigned int *current, unsigned int *pending) {
    CHECK(device);
    *current = *pending = (unsigned int)figure(device, "mig", 0);
    return OK;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned int *count) { CHECK(device); *count = 7; return OK; }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned int index, Device **child) {
    CHECK(device);
    if (index >= 2) return NOT_FOUND;
    *child = &mig[index];
    return OK;
}
EXPORT int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    CHECK(device);
    if (device->index >= 100) return NOT_SUPPORTED;
    rates->gpu = (unsigned int)figure(device, "gpu", 70 + device->index);
    rates->memory = (unsigned int)figure(device, "memory", 30);
    return OK;
}
EXPORT int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    CHECK(device);
    memory->total = (unsigned long long)figure(device, "total", 150LL << 30);
    memory->used = (unsigned long long)figure(device, "used", 100LL << 30);
    memory->free = memory->total - memory->used;
    return OK;
}
EXPORT int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned int *celsius) {
    (void)sensor; CHECK(device); *celsius = (unsigned int)figure(device, "temperature", 60); return OK;
}
EXPORT int nvmlDeviceGetPowerUsage(Device *device, unsigned int *milliwatts) {
    CHECK(device); *milliwatts = (unsigned int)figure(device, "milliwatts", 412500); return OK;
}
EXPORT int nvmlDeviceGetClockInfo(Device *device, int type, unsigned int *mhz) {
    CHECK(device); *mhz = type == 1 ? 1980 : 999; return OK;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) {
    CHECK(device); *bits = (unsigned long long)figure(device, "throttle", 1); return OK;
}
EXPORT int nvmlDeviceGetTotalEccErrors(Device *device, int error, int counter, unsigned long long *count) {
    CHECK(device); *count = counter == 1 ? (error ? 2 : 31) : 0; return OK;
}
EXPORT int nvmlDeviceGetRemappedRows(Device *device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failure) {
    CHECK(device); *corrected = 3; *uncorrected = 1; *pending = *failure = 0; return OK;
}
EXPORT int nvmlDeviceGetRetiredPages(Device *device, int cause, unsigned int *count, unsigned long long *pages) {
    CHECK(device);
    unsigned int have = cause ? 2 : 5;
    if (!pages || *count < have) { *count = have; return INSUFFICIENT_SIZE; }
    for (unsigned int i = 0; i < have; i++) pages[i] = i;
    *count = have;
    return OK;
}
EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(Device *device, unsigned int *generation) {
    CHECK(device); *generation = (unsigned int)figure(device, "generation", 5); return OK;
}
EXPORT int nvmlDeviceGetCurrPcieLinkWidth(Device *device, unsigned int *width) {
    CHECK(device); *width = (unsigned int)figure(device, "width", 16); return OK;
}
EXPORT int nvmlDeviceGetPcieThroughput(Device *device, int counter, unsigned int *kilobytes) {
    CHECK(device); *kilobytes = counter ? 31508000u : 1000u; return OK;
}
EXPORT int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    CHECK(device);
    for (int i = 0; i < count; i++) {
        values[i].code = (int)figure(device, "field_code", OK);
        if (values[i].field == 91) values[i].value.u = (unsigned int)figure(device, "links", 18);
        else if (values[i].field == 90) values[i].value.u = 26562;
        else if (values[i].field == 138 && values[i].scope == 0xFFFFFFFFu) values[i].value.ull = (unsigned long long)figure(device, "sent_kib", 1000);
        else if (values[i].field == 139 && values[i].scope == 0xFFFFFFFFu) values[i].value.ull = (unsigned long long)figure(device, "received_kib", 500);
        else values[i].code = INVALID;
    }
    return OK;
}
EXPORT int nvmlEventSetCreate(void **set) { CHECK_LIBRARY(); *set = NULL; return OK; }
EXPORT int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, Device **set) {
    (void)set; CHECK(device); return types == 8 ? OK : INVALID;
}
EXPORT int nvmlEventSetWait_v2(void *set, EventData *data, unsigned int timeout) {
    (void)set; CHECK_LIBRARY();
    if (timeout) return INVALID;
    long long waiting = get(figures, figure_count, -1, "xids", 0);
    if (waiting <= 0) return TIMEOUT;
    put(figures, &figure_count, -1, "xids", waiting - 1);
    data->type = 8;
    data->data = (unsigned long long)get(figures, figure_count, -1, "xid", 31);
    return OK;
}
