/* A kind of devices: how names in a list become devices. device_list.c has the table of kinds. */
#ifndef SLI_DEVICE_DEVICE_KIND_H
#define SLI_DEVICE_DEVICE_KIND_H

#include "core/usable_memory.h"
#include "device/device_base.h"

enum { SLI_MAX_DEVICES = 1024, SLI_MAX_DEVICE_NUMBER = 65535 };

/* One name of a list, as its kind has read it. */
typedef struct sli_device_name {
    char text[SLI_DEVICE_NAME_BYTES];
    int form;        /* which of the kind's forms it has, by the kind's own count */
    int first, last; /* the numbers in it; what they mean is the kind's business */
} sli_device_name;

/* Devices to create: first … end - 1 of `names`. */
typedef struct sli_device_request {
    const sli_device_name *names; /* [count] the list's names of this kind, in the list's order */
    int count;
    int first, end;
    bool bound; /* the process's cores are its own: divide them among its names only */
    sli_memory_bound *memory; /* of the host, for all devices of the list; lives as long as they */
} sli_device_request;

/* Every slot is required. */
typedef struct sli_device_kind {
    const char *prefix; /* "cpu": a name of this kind is this, or begins with "cpu:" */
    const char *forms;  /* "cpu, cpu:NUMBER or cpu:FIRST-LAST" */

    /* Reads name->text into the other fields; false: it has none of the forms. */
    bool (*parse)(sli_device_name *name);

    /* Refuses names that no machine has together. Errors: SL_ERR_INVALID. */
    sl_status (*check)(const sli_device_name *names, int count);

    /* Creates the devices of a request whose names are checked into out[0 … end - first - 1]; none
     * after an error. Sets *shared where they share cores with each other or with others of the
     * list, and leaves it alone where not. Errors: SL_ERR_NOT_FOUND for what the machine lacks. */
    sl_status (*create)(const sli_device_request *request, sl_device **out, bool *shared);

    /* How many devices of its own the machine offers this process: PREFIX:0 … PREFIX:count - 1. */
    sl_status (*count)(int *out);
} sli_device_kind;

extern const sli_device_kind sli_cpu_kind;

/* The kind of a name; NULL: no kind has this prefix. `kinds` ends with NULL. */
const sli_device_kind *sli_device_kind_of(const sli_device_kind *const *kinds, const char *name);

/* Reads a list into names [*count], which the caller frees. Errors: SL_ERR_INVALID quotes the name
 * that cannot be read, and says how names look. */
sl_status sli_device_names_parse(const sli_device_kind *const *kinds, const char *list,
                                 sli_device_name **out, int *count);

/* For parse: reads the digits at *text, 0 to SLI_MAX_DEVICE_NUMBER, and moves *text behind them. */
bool sli_device_number_parse(const char **text, int *out);

/* As sli_device_list_create_part (device_list.h), of these kinds. */
sl_status sli_device_list_create_of(const sli_device_kind *const *kinds, const char *names,
                                    int first, int most, bool bound, sl_device_list **out,
                                    bool *oversubscribed);

#endif
