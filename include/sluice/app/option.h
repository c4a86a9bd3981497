/* Options: fields of a struct that can be set, checked and printed by name.
 *
 * A row (sl_option) says all about one option. The program's command lines, the checks of
 * sl_train_options_check, configuration files, the run log, what a resumed run compares and the
 * documentation's tables are made from such rows. */
#ifndef SLUICE_APP_OPTION_H
#define SLUICE_APP_OPTION_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

SL_API_BEGIN

/* What an option takes, and the type of its field. */
typedef enum sl_option_type {
    SL_OPTION_FLAG,   /* bool */
    SL_OPTION_INT,    /* int */
    SL_OPTION_INT64,  /* int64_t */
    SL_OPTION_FLOAT,  /* float, finite, at least 0. A negative field means "not set";
                         sl_option_check refuses it */
    SL_OPTION_DOUBLE, /* double, the same */
    SL_OPTION_PAIR,   /* two floats, each as a FLOAT, the second behind the first: "0.9,0.999" */
    SL_OPTION_SEED,   /* uint64_t, any */
    SL_OPTION_BYTES,  /* uint64_t from 1; K, M and G after a number are powers of 1024 */
    SL_OPTION_CHOICE, /* an enum: the index of its name in `choices` */
    SL_OPTION_TEXT,   /* const char *, borrowed, not empty; NULL: not set */
    SL_OPTION_CUSTOM  /* what `parse` and `print` make of it */
} sl_option_type;

typedef struct sl_option {
    const char *name;     /* "batch-size" */
    const char *value;    /* what help writes for its value, "N"; NULL for a FLAG */
    const char *group;    /* heading over it in help and documentation; NULL: none */
    const char *help;     /* one sentence without a full stop */
    const char *needs;    /* (optional) the name of the option that this one depends on */
    const char *old_name; /* (optional) another name that is read, and never printed */
    size_t offset;        /* of its field in the struct */

    int64_t lowest, highest;    /* INT and INT64: the range, both ends included; FLOAT and DOUBLE:
                                   highest alone. highest 0: the type's largest value */
    double less_than;           /* FLOAT, DOUBLE: the value must be less than this; 0: any */
    double default_value;       /* what a field of 0 stands for; 0: itself */
    double second_default;      /* PAIR: the same for the second float */
    const char *initial;        /* (optional) the text that a program sets it to before it reads its
                                   command line */
    const char *const *choices; /* CHOICE, TEXT (optional): the values that are valid, then NULL */
    /* CUSTOM: `parse` sets the fields from a text; its error is SL_ERR_INVALID, with a sentence
     * that begins with the option's name. `print` gives that text, malloc'ed; NULL: not set, or
     * there is no memory. */
    sl_status (*parse)(const char *text, void *object);
    char *(*print)(const void *object);

    /* (optional, TEXT) Whether a text is an item of a list. A command line that gives the option
     * twice, and one of the two is an item, gives the list of both, with a comma between. */
    bool (*is_item)(const char *text);

    const char *log_key; /* its key in the run log; NULL: its name, with _ for - */
    bool (*affects_numbers)(const void *object); /* (optional) whether the run's results depend on
                                                    it: a resumed run must have the same value */
    bool (*ignored)(
        const void *object); /* (optional) whether the run pays no attention to it: it is
                                not logged, and a resumed run may have another value */

    sl_option_type type;
    char letter;     /* short name on a command line; 0: none */
    bool optional;   /* INT, INT64: 0 is valid, and means "not set" or `default_value` */
    bool in_model;   /* its key is in the object "model" of the run log */
    bool not_logged; /* it has no key in the run log */
} sl_option;

/* Sets an option's field of `object` from a text; text may be NULL for a FLAG: true. A TEXT is
 * borrowed. Errors: SL_ERR_INVALID, "NAME must be …, got "…"". */
sl_status sl_option_set(const sl_option *option, void *object, const char *text);

/* Checks the value of the field itself. Errors: SL_ERR_INVALID, "NAME must be …, got …". */
sl_status sl_option_check(const sl_option *option, const void *object);

/* Prints the value in the form that sl_option_set reads: *text is malloc'ed, NULL where it is not
 * set. Errors: SL_ERR_MEMORY. */
sl_status sl_option_text(const sl_option *option, const void *object, char **text);

/* The row of that name among rows that end with one without a name, or NULL. */
const sl_option *sl_option_find(const sl_option *rows, const char *name);

/* ---- Environment variables -------------------------------------------------------------- */

/* The variables that change how the library runs, for a program's help: name, help and choices; the
 * last row has no name. SL_DEBUG takes a list of its choices, with commas between them. The library
 * reads them itself, when an object that they concern is created, and refuses other values
 * (SL_ERR_INVALID). */
extern const sl_option sl_environment_rows[];

SL_API_END

#endif
