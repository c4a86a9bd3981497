/* How unusual a value is beside those just before it. */
#ifndef SLI_REPORT_ZSCORE_H
#define SLI_REPORT_ZSCORE_H

enum { SLI_ZSCORE_VALUES = 128 };

/* The last values that were finite. All 0: none yet. */
typedef struct sli_zscore {
    double values[SLI_ZSCORE_VALUES]; /* a ring */
    int count, next;
} sli_zscore;

/* The value's distance from the mean of up to SLI_ZSCORE_VALUES values before it, in their standard
 * deviations; NaN where there are fewer than two, where all are equal, or where the value is not
 * finite. Then adds the value, unless it is not finite. */
double sli_zscore_add(sli_zscore *before, double value);

#endif
