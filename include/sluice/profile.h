/* Profiles: how long each module of a model takes on a device.
 *
 * Runs one micro-batch through one module at a time. Meanwhile only the parameters exist that this
 * module uses, so a profile needs the memory of the largest module, and of what modules have
 * stashed (sl_module_add_stash). A module equal to the one before it (type, sizes, parameters,
 * frozen or not, evaluation mode or not) is not run: it gets the same times.
 *
 * NULL is refused (sluice/status.h). */
#ifndef SLUICE_PROFILE_H
#define SLUICE_PROFILE_H

#include "sluice/loss.h"

SL_API_BEGIN

/* Seconds of one micro-batch. Where the loss takes over the last module, that module's forward and
 * output_bytes are 0, and its other times are the loss's. */
typedef struct sl_module_profile {
    double forward;
    double backward;        /* both halves at once: B */
    double backward_input;  /* I */
    double backward_weight; /* W */
    double output_bytes;    /* of the tensor that the module gives to the next one */
} sl_module_profile;

enum { SL_PROFILE_ROUNDS = 5 };

typedef struct sl_profile_options {
    sl_module *model;       /* a sequential with parameters in no parameter set; borrowed */
    sl_loss *loss;          /* borrowed; NULL: the last module has no loss behind it */
    sl_device *device;      /* borrowed; used by a thread that the profile starts */
    const sl_tensor *input; /* [N, ...] one micro-batch, on the device; borrowed */
    const sl_input *inputs; /* [input_count] the micro-batch's further inputs; borrowed */
    int input_count;
    const sl_tensor *targets; /* [N, ...] with a loss; borrowed */
    sl_precision precision;   /* of the modules' products */
    int rounds;               /* after a first one, which is not timed; 0: SL_PROFILE_ROUNDS */
} sl_profile_options;

/* The medians of the rounds' times into profiles[0 ... modules - 1]. A round runs forward twice,
 * backward once whole and once in halves.
 * Errors: SL_ERR_INVALID for a model that is no sequential, and for parameters that are in a
 * parameter set; what the modules and the device report. */
sl_status sl_profile_modules(const sl_profile_options *options, sl_module_profile *profiles);

SL_API_END

#endif
