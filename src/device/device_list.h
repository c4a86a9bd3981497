/* Part of a device list: for a process that is one of several on a machine. */
#ifndef SLI_DEVICE_LIST_H
#define SLI_DEVICE_LIST_H

#include "sluice/device.h"

/* As sl_device_list_create, but creates devices `first` to `first + most - 1` of those named alone
 * (fewer where the list ends before). cpu:0, cpu:1, … divide the allowed cores among all that are
 * named; but where these cores are this process's alone (`bound`), among those of the part. */
sl_status sli_device_list_create_part(const char *names, int first, int most, bool bound,
                                      sl_device_list **out, bool *oversubscribed);

/* Refuses a list that sl_device_list_create would refuse on every machine. */
sl_status sli_device_list_check(const char *names);

#endif
