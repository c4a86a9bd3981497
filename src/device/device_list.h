/* Device lists beyond the public functions: for a process that is one of several on a machine. */
#ifndef SLI_DEVICE_DEVICE_LIST_H
#define SLI_DEVICE_DEVICE_LIST_H

#include "sluice/device.h"

/* As sl_device_list_create, but creates devices `first` to `first + most - 1` of those named alone
 * (fewer where the list ends before). cpu:0, cpu:1, … divide the allowed cores among all that are
 * named; but where these cores are this process's alone (`bound`), among those of the part. */
sl_status sli_device_list_create_part(const char *names, int first, int most, bool bound,
                                      sl_device_list **out, bool *oversubscribed);

/* Refuses a list that sl_device_list_create would refuse on every machine. */
sl_status sli_device_list_check(const char *names);

/* How many devices of a kind ("cpu") the machine has for this process: cpu:0 to cpu:(count - 1), a
 * core each. Errors: SL_ERR_INVALID for a kind that there is not. */
sl_status sli_device_count(const char *prefix, int *out);

#endif
