#include "device/cases.h"

#include "device/cpu/cpu_device.h"
#ifdef SLUICE_TEST_EMULATION
#include "device/cuda/emulated.h"
#endif
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Devices ---------------------------------------------------------------------------- */

/* Each twice in its family: what it gives, it must give again. */
static sl_status create_named(const char *names, lab *made)
{
    SL_TRY(sl_device_list_create(names, &made->named, NULL));
    made->count = sl_device_list_count(made->named);
    if (made->count > LAB_FAMILIES)
        return sl_error(SL_ERR_INVALID, "at most %d devices are tested at once", LAB_FAMILIES);
    for (int i = 0; i < made->count; i++) {
        sl_device *device = sl_device_list_get(made->named, i);
        made->families[i] = (lab_family){2, {device, device}};
    }
    return SL_OK;
}

/* Kernels of every instruction set are split over threads alike: ThreadSanitizer watches one. What
 * threads do to each other is alike in all cases of a kind. Bits of other numbers of threads, and
 * of other orders of them, are no matter for a sanitizer. */
#ifdef __SANITIZE_THREAD__
enum { ISAS = 1, EACH = 4 };
#else
enum { ISAS = 3, EACH = 1 };
#endif
enum { MEMBERS_APART = IS_SANITIZED ? 2 : 1 };

static sl_status create_cpus(lab *made)
{
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    static const int threads[LAB_MEMBERS] = {1, 2, 3, 5};
    for (int i = 0; i < ISAS; i++) {
        lab_family *family = &made->families[made->count];
        for (int t = 0; t < LAB_MEMBERS; t += MEMBERS_APART) {
            sli_cpu_options options = {.name = isas[i],
                                       .threads = threads[t],
                                       .shared = true,
                                       .isa = isas[i]};
            sl_status status = sli_cpu_device_create(&options, &family->members[family->count]);
            if (status == SL_ERR_UNSUPPORTED && i > 0)
                print_message("skipped: %s (%s)\n", isas[i], sl_error_text());
            else if (status != SL_OK)
                return status;
            family->count += status == SL_OK;
        }
        made->count += family->count > 0;
    }
    return SL_OK;
}

static sli_device_ops few_slots;

static sl_status create_without_optional_slots(lab *made)
{
    lab_family *family = &made->families[made->count++];
    SL_TRY(sl_device_create_cpu(2, &family->members[0]));
    family->count = 1;
    few_slots = *family->members[0]->ops;
    few_slots.bind_thread = NULL;
    few_slots.write = few_slots.read = NULL;
    few_slots.add_dropout = NULL;
    few_slots.attention_from = NULL;
    few_slots.attention_backward_from = NULL;
    few_slots.cross_entropy_bias = NULL;
    family->members[0]->ops = &few_slots;
    return SL_OK;
}

/* The second one of the family draws other orders of threads than the first. */
static sl_status create_emulated(lab *made)
{
#ifdef SLUICE_TEST_EMULATION
    emulation_seed(made->seed);
    lab_family *family = &made->families[made->count++];
    SL_TRY(emulated_device_create(&family->members[0]));
    family->count = 1;
    if (IS_SANITIZED)
        return SL_OK;
    SL_TRY(emulated_device_create(&family->members[1]));
    family->count = 2;
    return SL_OK;
#else
    return sl_error(SL_ERR_UNSUPPORTED, "the build lacks a C++ compiler for emulated kernels");
#endif
}

static sl_status create_devices(lab *made, const char *names)
{
    if (names && strcmp(names, "emulated") == 0)
        return create_emulated(made);
    if (names)
        return create_named(names, made);
    SL_TRY(create_cpus(made));
    return create_without_optional_slots(made);
}

int lab_create(void **state)
{
    lab *all = calloc(1, sizeof *all);
    const char *names = getenv("SLUICE_TEST_DEVICES"), *seed = getenv("SLUICE_TEST_SEED");
    const char *each = getenv("SLUICE_TEST_EACH");
    *state = all;
    all->given = names;
    all->each = each ? strtoull(each, NULL, 10) : EACH;
    all->seed = seed ? strtoull(seed, NULL, 10) : 20240229u;
    print_message("seed %llu\n", (unsigned long long)all->seed);
    sl_status status = create_devices(all, names);
    if (status != SL_OK)
        print_error("%s\n", sl_error_text());
    return status == SL_OK ? 0 : -1;
}

int lab_destroy(void **state)
{
    FREED lab *all = *state;
    for (int f = 0; f < all->count && !all->named; f++)
        for (int m = 0; m < all->families[f].count; m++)
            sl_device_destroy(&all->families[f].members[m]);
    sl_device_list_destroy(&all->named);
    return 0;
}

/* ---- A case on a device ----------------------------------------------------------------- */

static const case_array_info *info_of(const op_case *c, int array)
{
    return &case_operations[c->spec.kind].arrays[array];
}

static bool is_covered(const op_case *c, int array)
{
    for (int a = 0; a < CASE_ARRAYS; a++)
        if (c->arrays[a].host && c->arrays[a].over == array)
            return true;
    return false;
}

/* results[a] of every array that another does not lie over, malloc'ed. */
static void run_case(sl_device *device, const op_case *c, void *results[CASE_ARRAYS])
{
    loaded_case loaded;
    check_ok(case_load(device, c, &loaded));
    check_ok(case_run(&loaded));
    for (int a = 0; a < CASE_ARRAYS; a++) {
        results[a] = NULL;
        if (!c->arrays[a].host || is_covered(c, a))
            continue;
        results[a] = malloc((size_t)c->arrays[a].count * case_type_bytes(info_of(c, a)->type) + 1);
        check_ok(case_read(&loaded, a, results[a]));
    }
    case_unload(&loaded);
    assert_int_equal(device_bytes(device), 0);
}

static void free_results(void *const *results)
{
    for (int a = 0; a < CASE_ARRAYS; a++)
        free(results[a]);
}

void *result_of(sl_device *device, const op_case *c, int array)
{
    void *results[CASE_ARRAYS], *wanted;
    run_case(device, c, results);
    wanted = results[array];
    results[array] = NULL;
    free_results(results);
    return wanted;
}

/* ---- The check -------------------------------------------------------------------------- */

/* The root of the mean square of what is finite. */
static double mean_size(const double *values, int64_t count)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += isfinite(values[i]) ? values[i] * values[i] : 0;
    return count ? sqrt(squares / (double)count) : 0;
}

static bool is_near(double expected, double got, double limit)
{
    if (isnan(expected) || isnan(got))
        return isnan(expected) && isnan(got);
    return got == expected || fabs(got - expected) <= limit;
}

static void check_array(const op_case *c, int array, const double *expected, const void *got,
                        const sl_device *device)
{
    const case_array_info *info = info_of(c, array);
    int64_t count = c->arrays[array].count;
    double tolerance = info->tolerance;
    if (case_is_bf16(c) && info->bf16_tolerance > 0)
        tolerance = info->bf16_tolerance;
    if (case_is_tf32(c) && info->tf32_tolerance > 0)
        tolerance = info->tf32_tolerance;
    /* What cancels to little was about so large before: a loss is a difference of logits. */
    double before = c->spec.kind != CASE_CROSS_ENTROPY ? 0.1 : info->type == CASE_F64 ? 1 : 0.01;
    double size = mean_size(expected, count) + before;
    char text[CASE_TEXT_BYTES];
    for (int64_t i = 0; i < count; i++) {
        double value = case_element(info->type, got, i);
        double limit = tolerance * (fabs(expected[i]) + size);
        if (!is_near(expected[i], value, limit))
            fail_msg("%s on %s: element %lld of %lld of %s: expected %.9g, got %.9g (limit %.3g)",
                     case_text(&c->spec, text), sl_device_name(device), (long long)i,
                     (long long)count, info->name, expected[i], value, limit);
    }
}

static void check_same_bits(const op_case *c, void *const *first, void *const *other,
                            const sl_device *device)
{
    char text[CASE_TEXT_BYTES];
    for (int a = 0; a < CASE_ARRAYS; a++) {
        size_t bytes = (size_t)c->arrays[a].count * case_type_bytes(info_of(c, a)->type);
        const void *before = c->arrays[a].host;
        bool is_input = info_of(c, a)->use == IN;
        if (first[a] && memcmp(other[a], is_input ? before : first[a], bytes) != 0)
            fail_msg("%s on %s with %d threads: %s has other bits", case_text(&c->spec, text),
                     sl_device_name(device), sl_device_thread_count(device), info_of(c, a)->name);
    }
}

void check_case(const lab *all, const op_case *c)
{
    double *expected[CASE_ARRAYS];
    void *results[LAB_MEMBERS][CASE_ARRAYS] = {{NULL}};
    case_reference(c, expected);
    for (int f = 0; f < all->count; f++) {
        const lab_family *family = &all->families[f];
        for (int m = 0; m < family->count; m++) {
            run_case(family->members[m], c, results[m]);
            check_same_bits(c, results[0], results[m], family->members[m]);
        }
        for (int a = 0; a < CASE_ARRAYS; a++)
            if (results[0][a] && expected[a])
                check_array(c, a, expected[a], results[0][a], family->members[0]);
        for (int m = 0; m < family->count; m++)
            free_results(results[m]);
    }
    for (int a = 0; a < CASE_ARRAYS; a++)
        free(expected[a]);
}
