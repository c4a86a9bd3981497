/* The backend `local`: see local.c. */
#ifndef SLI_COMM_LOCAL_H
#define SLI_COMM_LOCAL_H

#include "comm/group.h"

/* The handles of a new group's ranks. */
sl_status sli_local_create(int size, const sl_group_options *options, sl_group **handles);

#endif
