/* Device lists beyond the public functions: for a process that is one of several on a machine. */
#ifndef SLI_DEVICE_DEVICE_LIST_H
#define SLI_DEVICE_DEVICE_LIST_H

#include "sluice/device.h"

/* As sl_device_list_create, but creates only devices `first` to `first + most - 1` of those named,
 * or fewer where the list ends before. cpu:0, cpu:1, … divide the allowed cores among all devices
 * that are named; with `bound`, where no other process may use these cores, among those created. */
sl_status sli_device_list_create_range(const char *names, int first, int most, bool bound,
                                       sl_device_list **out, bool *oversubscribed);

/* Refuses a list that sl_device_list_create would refuse on every machine. */
sl_status sli_device_list_check(const char *names);

/* How many devices of a kind ("cpu") the machine has for this process: cpu:0 to cpu:(count - 1), a
 * core each. Errors: SL_ERR_INVALID for a kind that there is not. */
sl_status sli_device_count(const char *prefix, int *out);

#endif
