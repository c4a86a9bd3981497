/* Time, for measuring how long things take. */
#ifndef SLI_CORE_CLOCK_H
#define SLI_CORE_CLOCK_H

/* Seconds on a clock that only goes forward; where it starts means nothing. */
double sli_clock_seconds(void);

#endif
