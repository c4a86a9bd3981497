/* What the system lets one process have. */
#ifndef SLI_CORE_LIMITS_H
#define SLI_CORE_LIMITS_H

/* Raises this process's limit on open files (RLIMIT_NOFILE) from the soft to the hard one, which
 * every process may do; children inherit it and can do the same. Gives the limit that holds then:
 * the soft one, unchanged, where the system refuses. */
long sli_raise_descriptor_limit(void);

#endif
