/* This machine as a kind of nodes of a cluster file: how fast its devices are for a run's model,
 * all at the same time, and what they have. */
#include "core/error.h"
#include "core/host.h"
#include "core/json.h"
#include "core/usable_memory.h"
#include "device/cpu/onednn.h"
#include "models/config.h"
#include "nn/module.h"
#include "planner/cluster.h"
#include "sluice/app/plan.h"
#include "train/plan/machine.h"
#include "train/plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNGS = 14 };

typedef struct measured {
    const sl_train_options *run;
    double seconds; /* for measuring again */
    sl_module *model;
    sli_machine machine;
    int modules, rungs;
    sl_module_profile *times[MOST_RUNGS]; /* [rungs][modules] of 1, 2, 4 ... rows */
    double spread;                        /* between rounds; negative: there was one */
    double flops;                         /* peak FLOP/s of a device in the run's precision */
    double flops_f32;
    double memory_bytes_per_s;
    int64_t process_bytes;
} measured;

/* ---- Measuring ------------------------------------------------------------------------------ */

/* As many rows as the machine times, into m->rungs. */
static sl_status time_ladder(measured *m)
{
    const sli_machine *machine = &m->machine;
    sl_module_profile *times = calloc((size_t)m->modules, sizeof *times);
    if (!times)
        return sli_no_memory(NULL, "the times of %d modules", m->modules);
    sl_status status = SL_OK;
    for (int rung = 0; rung < MOST_RUNGS && status == SL_OK && m->rungs == rung; rung++) {
        int64_t rows = (int64_t)1 << rung;
        status = machine->time_modules(machine->context, machine->cores, rows, times);
        m->rungs += status == SL_OK && sli_machine_timed_rows(machine, machine->cores) >= rows;
    }
    free(times);
    return status;
}

/* What was timed, when it is not timed again. */
static sl_status read_ladder(measured *m)
{
    const sli_machine *machine = &m->machine;
    for (int rung = 0; rung < m->rungs; rung++) {
        int64_t rows = (int64_t)1 << rung;
        m->times[rung] = calloc((size_t)m->modules, sizeof *m->times[rung]);
        if (!m->times[rung])
            return sli_no_memory(NULL, "the times of %d modules", m->modules);
        SL_TRY(machine->time_modules(machine->context, machine->cores, rows, m->times[rung]));
        m->spread = fmax(m->spread, machine->find_spread(machine->context, machine->cores, rows));
    }
    return SL_OK;
}

/* Of a machine that is open. */
static sl_status time_peak(const sli_machine *machine, double *flops)
{
    SL_TRY(machine->time_peak(machine->context, machine->cores, flops));
    *flops /= machine->cores;
    return *flops > 0 ? SL_OK
                      : sl_error(SL_ERR_INVALID, "the devices' best rate of large matrix products "
                                                 "could not be measured");
}

/* A cluster file has the rate in f32 in any case. */
static sl_status time_f32_peak(measured *m)
{
    sl_train_options run = *m->run;
    sli_machine machine;
    m->flops_f32 = m->flops;
    if (run.precision == SL_PRECISION_F32)
        return SL_OK;
    run.precision = SL_PRECISION_F32;
    SL_TRY(sli_machine_open(&run, 0, 0, &machine));
    sl_status status = time_peak(&machine, &m->flops_f32);
    sli_machine_close(&machine);
    return status;
}

/* From what an update with averages in f32 reads and writes of the memory
 * (sli_cluster_time_update). */
static sl_status time_memory(measured *m)
{
    sli_update_speed speed;
    SL_TRY(m->machine.time_update(m->machine.context, m->machine.cores, &speed));
    double update = speed.optimizer + speed.undivided;
    m->memory_bytes_per_s =
        update > 0 ? sli_cluster_time_update(update, INFINITY, &m->run->optimizer) : 0;
    return SL_OK;
}

static sl_status measure(measured *m)
{
    sli_sgemm_load();
    const uint64_t before = sli_resident_memory_with_files(), files = sli_resident_files();
    bool is_measured;
    SL_TRY(sl_transformer_lm_create(&m->run->model, &m->model));
    m->modules = sl_module_child_count(m->model);
    SL_TRY(sli_machine_open(m->run, 0, m->seconds, &m->machine));
    SL_TRY(time_ladder(m));
    SL_TRY(time_memory(m));
    SL_TRY(m->machine.measure_again(m->machine.context, &is_measured));
    SL_TRY(read_ladder(m));
    SL_TRY(time_memory(m));
    SL_TRY(time_peak(&m->machine, &m->flops));
    /* and the code that a training loads as well */
    m->process_bytes = (int64_t)(before + sli_resident_files() - files);
    return time_f32_peak(m);
}

/* ---- Writing -------------------------------------------------------------------------------- */

/* What the module with the most operations reaches of the peak, by its operations, where that is
 * more than with fewer rows: for plans of other models. */
static sl_status write_efficiency(const measured *m, FILE *file)
{
    sl_module_profile *operations = calloc((size_t)m->modules, sizeof *operations);
    double before = 0;
    sl_status status = SL_OK;
    bool is_first = true;
    if (!operations)
        return sli_no_memory(NULL, "the operations of %d modules", m->modules);
    for (int rung = 0; rung < m->rungs && status == SL_OK; rung++) {
        const sl_module_profile *times = m->times[rung];
        status = sli_count_operations(m->model, sl_shape_2d((int64_t)1 << rung, m->run->bptt),
                                      operations);
        int most = 0;
        for (int i = 0; i + 1 < m->modules && status == SL_OK; i++) /* the last has no forward */
            if (operations[i].forward > operations[most].forward)
                most = i;
        double flop = operations[most].forward, seconds = times[most].forward;
        if (status != SL_OK || flop < 1 || flop <= before || seconds <= 0)
            continue;
        before = flop;
        fprintf(file, "%s[%.6g, %.4g]", is_first ? ",\n      \"efficiency\": [" : ", ", flop,
                fmin(1, fmax(1e-6, flop / seconds / m->flops)));
        is_first = false;
    }
    if (!is_first)
        fprintf(file, "]");
    free(operations);
    return status;
}

/* Modules that are alike share one's times (sl_profile_modules). */
static bool are_alike(const measured *m, int a, int b)
{
    for (int rung = 0; rung < m->rungs; rung++) {
        const sl_module_profile *x = &m->times[rung][a], *y = &m->times[rung][b];
        if (x->forward != y->forward || x->backward != y->backward ||
            x->backward_input != y->backward_input || x->backward_weight != y->backward_weight)
            return false;
    }
    const sl_module *x = sl_module_child(m->model, a), *y = sl_module_child(m->model, b);
    for (sl_parameter_kind kind = SL_PARAMETER_TRAINED; kind <= SL_PARAMETER_FROZEN; kind++)
        if (sli_module_elements(x, kind) != sli_module_elements(y, kind))
            return false;
    return true;
}

static void write_modules(const measured *m, FILE *file)
{
    for (int i = 0, next; i < m->modules; i = next) {
        const sl_module *module = sl_module_child(m->model, i);
        int64_t trained = sli_module_elements(module, SL_PARAMETER_TRAINED),
                all = trained + sli_module_elements(module, SL_PARAMETER_FROZEN);
        for (next = i + 1; next < m->modules && are_alike(m, i, next);)
            next++;
        fprintf(file,
                "%s          {\"count\": %d, \"parameters\": %" PRId64 ", \"trained\": %" PRId64
                ", \"seconds\": [",
                i > 0 ? ",\n" : "", next - i, all, trained);
        for (int rung = 0; rung < m->rungs; rung++) {
            const sl_module_profile *times = &m->times[rung][i];
            fprintf(file, "%s\n            [%.5g, %.5g, %.5g, %.5g]", rung > 0 ? "," : "",
                    times->forward, times->backward, times->backward_input, times->backward_weight);
        }
        fprintf(file, "]}");
    }
}

/* As its config.json, by which a plan of another model is refused. */
static sl_status write_model(const sl_model_options *model, FILE *file)
{
    char *text;
    SL_TRY(sli_config_print(model, SL_F32, &text));
    fprintf(file, ",\n        \"model\": ");
    for (const char *c = text; *c; c++) {
        fputc(*c, file);
        if (*c == '\n')
            fputs("        ", file);
    }
    free(text);
    return SL_OK;
}

static bool is_cuda(const sl_train_options *run)
{
    return run->devices && strncmp(run->devices, "cuda", strlen("cuda")) == 0;
}

static sl_status write_node(const measured *m, int64_t device_memory, FILE *file)
{
    char host[SLI_HOST_NAME_BYTES], spread[32] = "";
    const sl_train_options *run = m->run;
    int devices = m->machine.cores;
    double memory =
        device_memory > 0 ? (double)device_memory : (double)sl_usable_memory() / devices;
    if (m->spread >= 0)
        snprintf(spread, sizeof spread, ", spread %.1f%%", 100 * m->spread);
    sli_host_name(host);
    for (char *c = host; *c; c++) /* which JSON has as it stands */
        *c = *c < ' ' || *c == '"' || *c == '\\' || *c == 0x7f ? '_' : *c;
    fprintf(file,
            "{\n  \"nodes\": [\n    {\n      \"name\": \"%s\",\n      \"measured\": \"sluice %s on "
            "%.24s%s\",\n      \"device\": \"%s\",\n      \"count\": 1,\n      \"devices\": %d,\n"
            "      \"memory_bytes\": %.0f,\n      \"reserved_bytes\": %" PRId64
            ",\n      \"flops_f32\": %.5g",
            host, sl_version(), host, spread, is_cuda(run) ? "cuda" : "cpu", devices, memory,
            m->process_bytes, m->flops_f32);
    if (run->precision != SL_PRECISION_F32)
        fprintf(file, ",\n      \"flops_%s\": %.5g", sl_precision_names[run->precision], m->flops);
    if (m->memory_bytes_per_s > 0)
        fprintf(file, ",\n      \"memory_bytes_per_s\": %.5g", m->memory_bytes_per_s);
    SL_TRY(write_efficiency(m, file));
    fprintf(file,
            ",\n      \"profile\": {\n        \"precision\": \"%s\",\n        \"row_tokens\": "
            "%" PRId64,
            sl_precision_names[run->precision], run->bptt);
    SL_TRY(write_model(&run->model, file));
    fprintf(file, ",\n        \"modules\": [\n");
    write_modules(m, file);
    fprintf(file, "]\n      }\n    }\n  ]\n}\n");
    return SL_OK;
}

static sl_status write_text(const measured *m, int64_t device_memory, char **text)
{
    size_t bytes;
    FILE *file = open_memstream(text, &bytes);
    if (!file)
        return sli_no_memory(NULL, "a profile");
    sli_c_numbers scope = sli_c_numbers_begin();
    sl_status status = write_node(m, device_memory, file);
    sli_c_numbers_end(scope);
    if (fclose(file) != 0 && status == SL_OK)
        status = sli_no_memory(NULL, "a profile");
    if (status != SL_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

/* Of the GPU that has least. */
static sl_status find_least_memory(const char *names, int64_t *bytes)
{
    sl_device_list *list;
    SL_TRY(sl_device_list_create(names, &list, NULL));
    *bytes = INT64_MAX;
    for (int i = 0; i < sl_device_list_count(list); i++) {
        sl_memory_stats stats;
        sl_device_memory(sl_device_list_get(list, i), &stats);
        if (stats.usable_bytes < (uint64_t)*bytes)
            *bytes = (int64_t)stats.usable_bytes;
    }
    sl_device_list_destroy(&list);
    return SL_OK;
}

sl_status sl_profile_machine(const sl_train_options *run, int64_t device_memory, double seconds,
                             char **text)
{
    SLI_CHECK_NOT_NULL(run);
    SLI_CHECK_NOT_NULL(text);
    *text = NULL;
    sl_train_options timed = *run;
    timed.optimizer.precision = SL_PRECISION_F32;
    measured m = {.run = &timed, .seconds = seconds, .spread = -1};
    if (run->task || run->data)
        return sl_error(SL_ERR_UNSUPPORTED, "a profile is made of random tokens, not with %s",
                        run->data ? "a text" : "a task");
    if (run->bptt < 1)
        return sl_error(SL_ERR_INVALID, "a profile needs the tokens of a row (seq-len)");
    SL_TRY(sli_train_options_check_values(run));
    if (is_cuda(run) && device_memory <= 0)
        SL_TRY(find_least_memory(run->devices, &device_memory));
    sl_status status;
    SL_TRY_OR_FAIL(measure(&m));
    status = write_text(&m, device_memory, text);
fail:
    for (int i = 0; i < m.rungs; i++)
        free(m.times[i]);
    sli_machine_close(&m.machine);
    sl_module_destroy(&m.model);
    return status;
}
