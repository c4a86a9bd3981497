/* What the tests of device operations share: devices of every instruction set and several thread
 * counts, random numbers, and one check: run an operation on all of the devices, hold it against a
 * reference in double precision, and hold thread counts against each other bit for bit. */
#ifndef TESTS_DEVICE_LAB_H
#define TESTS_DEVICE_LAB_H

#include "device/cpu/cpu_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAB_ISAS = 3, LAB_THREADS = 4, LAB_ARRAYS = 6 };

typedef struct lab {
    sl_device *devices[LAB_ISAS][LAB_THREADS]; /* NULL: the processor lacks the instruction set */
} lab;

static inline int lab_create(void **state)
{
    static const char *const isas[LAB_ISAS] = {"baseline", "avx2", "avx512"};
    static const int threads[LAB_THREADS] = {1, 2, 3, 5};
    lab *all = calloc(1, sizeof *all);
    for (int i = 0; i < LAB_ISAS; i++)
        for (int t = 0; t < LAB_THREADS; t++) {
            sli_cpu_options options = {.name = isas[i],
                                       .threads = threads[t],
                                       .shared = true,
                                       .isa = isas[i]};
            sl_status status = sli_cpu_device_create(&options, &all->devices[i][t]);
            if (status == SL_ERR_UNSUPPORTED && i > 0)
                print_message("skipped: %s (%s)\n", isas[i], sl_error_text());
            else if (status != SL_OK)
                return -1;
        }
    *state = all;
    return 0;
}

static inline int lab_destroy(void **state)
{
    lab *all = *state;
    for (int i = 0; i < LAB_ISAS; i++)
        for (int t = 0; t < LAB_THREADS; t++)
            sl_device_destroy(&all->devices[i][t]);
    free(all);
    return 0;
}

/* ---- Random numbers --------------------------------------------------------------------- */

typedef struct random_source {
    uint64_t state;
} random_source;

/* Prints the seed, so that a failure can be run again with SLUICE_TEST_SEED. */
static inline random_source random_start(const char *who)
{
    const char *text = getenv("SLUICE_TEST_SEED");
    random_source source = {text ? strtoull(text, NULL, 10) : 20240229u};
    print_message("%s: seed %llu\n", who, (unsigned long long)source.state);
    return source;
}

static inline uint32_t random_bits(random_source *source)
{
    source->state = source->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = source->state;
    return (uint32_t)((x ^ (x >> 22)) >> (22 + (x >> 61)));
}

/* 0 … below - 1 */
static inline int64_t random_below(random_source *source, int64_t below)
{
    return (int64_t)(random_bits(source) % (uint32_t)below);
}

static inline float random_float(random_source *source)
{
    return (float)random_bits(source) * 0x1p-31f - 1.0f;
}

static inline int64_t random_of(random_source *source, const int64_t *list, size_t count)
{
    return list[random_below(source, (int64_t)count)];
}

/* malloc'ed to the byte, so that sanitizers see the end; never NULL. */
static inline float *floats(int64_t count)
{
    float *values = malloc(count ? (size_t)count * sizeof *values : 1);
    assert_non_null(values);
    return values;
}

static inline float *random_floats(random_source *source, int64_t count)
{
    float *values = floats(count);
    for (int64_t i = 0; i < count; i++)
        values[i] = random_float(source);
    return values;
}

static inline float *copy_of(const float *values, int64_t count)
{
    float *copy = floats(count);
    if (count)
        memcpy(copy, values, (size_t)count * sizeof *copy);
    return copy;
}

static inline double *doubles(int64_t count)
{
    double *values = calloc(count ? (size_t)count : 1, sizeof *values);
    assert_non_null(values);
    return values;
}

/* ---- The check -------------------------------------------------------------------------- */

typedef struct outputs {
    int arrays;
    int64_t count[LAB_ARRAYS];
    float *values[LAB_ARRAYS];    /* the run fills these, malloc'ed by it */
    double *expected[LAB_ARRAYS]; /* the reference; NULL: not compared with it */
    double tolerance[LAB_ARRAYS]; /* of an element, relative to its own and the array's size */
} outputs;

/* Runs the operation on `device`; sets each out->values[i]. */
typedef void (*operation)(sl_device *device, const void *arguments, outputs *out);

static inline void check_array(const char *who, const outputs *out, int array)
{
    int64_t count = out->count[array];
    const float *got = out->values[array];
    const double *expected = out->expected[array];
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += expected[i] * expected[i];
    double size = count ? sqrt(squares / (double)count) : 0;
    for (int64_t i = 0; i < count; i++) {
        double limit = out->tolerance[array] * (fabs(expected[i]) + size) + 1e-30;
        if (fabs(got[i] - expected[i]) <= limit)
            continue;
        fail_msg("%s, array %d, element %lld of %lld: expected %.9g, got %.9g (limit %.3g)", who,
                 array, (long long)i, (long long)count, expected[i], (double)got[i], limit);
    }
}

static inline void free_values(outputs *out)
{
    for (int i = 0; i < out->arrays; i++) {
        free(out->values[i]);
        out->values[i] = NULL;
    }
}

static inline void check_on_all(const lab *all, const char *who, operation run,
                                const void *arguments, outputs *out)
{
    for (int isa = 0; isa < LAB_ISAS && all->devices[isa][0]; isa++) {
        outputs first = *out;
        run(all->devices[isa][0], arguments, &first);
        for (int i = 0; i < first.arrays; i++)
            if (first.expected[i])
                check_array(who, &first, i);
        for (int t = 1; t < LAB_THREADS; t++) {
            outputs other = *out;
            run(all->devices[isa][t], arguments, &other);
            for (int i = 0; i < other.arrays; i++)
                assert_memory_equal(other.values[i], first.values[i],
                                    (size_t)other.count[i] * sizeof(float));
            free_values(&other);
        }
        free_values(&first);
    }
    for (int i = 0; i < out->arrays; i++)
        free(out->expected[i]);
}

#endif
