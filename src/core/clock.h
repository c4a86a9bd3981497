/* Time, for measuring how long things take. */
#ifndef SLI_CORE_CLOCK_H
#define SLI_CORE_CLOCK_H

/* Seconds on a clock that only goes forward, from an arbitrary start. */
double sli_clock_seconds(void);

/* Compares two doubles, for qsort. */
int sli_compare_seconds(const void *a, const void *b);

/* The middle of the times, of an even count the mean of the middle two; count is at least 1. Sorts
 * them. */
double sli_median_seconds(double *seconds, int count);

/* A clock that counts the time in which its owner runs. A suspended job (by SIGSTOP, in a frozen
 * cgroup) may be silent for hours, which must not count as the silence of its processes. Zeroed, it
 * begins with its first reading. One thread at a time uses it. */
typedef struct sli_running_clock {
    double seconds; /* counted so far */
    double read;    /* when it was read last, on the system's clock; 0: never */
} sli_running_clock;

/* Seconds since the first reading. Each pause between two readings counts as at most `most`: about
 * twice the pause of the owner's loop. */
double sli_running_clock_read(sli_running_clock *clock, double most);

#endif
