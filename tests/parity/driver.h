/* What the drivers share, the programs that run the library beside PyTorch: tensors on a stream,
 * and options key=value... A record is a line "NAME DTYPE SIZE...\n" (DTYPE f32, f64 or i32) and
 * the elements' bytes; see records.py. */
#ifndef TESTS_PARITY_DRIVER_H
#define TESTS_PARITY_DRIVER_H

#include "sluice/group.h"
#include "sluice/tensor.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

enum { RECORD_NAME_BYTES = 128, MAX_RECORDS = 512 };

typedef struct record {
    char name[RECORD_NAME_BYTES];
    sl_dtype dtype;
    sl_shape shape;
    void *data;
} record;

typedef struct records {
    record list[MAX_RECORDS];
    int count;
} records;

/* Ends the program, with the error's text, unless `status` is SL_OK. */
void records_check(sl_status status);

/* Reads all of a stream. */
void records_read(FILE *stream, records *out);
void records_free(records *all);

/* The record of that name, or NULL. */
const record *records_find(const records *all, const char *name);

/* A tensor with a record's content; ends the program if there is none of that name. */
sl_tensor *records_tensor(const records *all, const char *name, sl_device *device);

/* Writes one record. */
void records_write(FILE *stream, const char *name, sl_dtype dtype, const sl_shape *shape,
                   const void *data);
void records_write_tensor(FILE *stream, const char *name, const sl_tensor *tensor);

/* An option's value. One that is missing or malformed ends the program. `arguments` ends with NULL,
 * as main's do. */
const char *option_text(char **arguments, const char *key);
double option_number(char **arguments, const char *key);
int64_t option_count(char **arguments, const char *key);
bool option_is(char **arguments, const char *key, const char *value);

/* What all ranks of a driver have. */
typedef struct job {
    char **options;
    const records *given;
    pthread_mutex_t *output; /* guards stdout */
} job;

/* Reads the records, and runs as many ranks as the options say, with the job. Returns main's 0. */
int job_run(char **options, sl_status (*run_rank)(sl_group *group, void *job));

#endif
