/* Which host this is. Two processes are on one host if the loopback interface leads from one to the
 * other: they run under one kernel, since its last start, and in one of its network namespaces. */
#ifndef SLI_CORE_HOST_H
#define SLI_CORE_HOST_H

#include <stdint.h>

enum { SLI_HOST_BYTES = 33 /* of a host's id */, SLI_HOST_NAME_BYTES = 64 };

/* For people: "node1"; "unknown" where the system does not say. The bytes after it are 0. */
void sli_host_name(char name[SLI_HOST_NAME_BYTES]);

/* 32 hexadecimal digits, the same for processes on one host alone. */
void sli_host_id(char id[SLI_HOST_BYTES]);

/* 63 bits of the id. */
int64_t sli_host_number(void);

#endif
