#include "report/zscore.h"

#include <math.h>

static double score(const sli_zscore *before, double value)
{
    double mean = 0, variance = 0;
    int count = before->count;
    for (int i = 0; i < count; i++)
        mean += before->values[i] / count;
    for (int i = 0; i < count; i++)
        variance += (before->values[i] - mean) * (before->values[i] - mean) / (count - 1);
    return count >= 2 && variance > 0 ? (value - mean) / sqrt(variance) : NAN;
}

double sli_zscore_add(sli_zscore *before, double value)
{
    if (!isfinite(value))
        return NAN;
    double z = score(before, value);
    before->values[before->next] = value;
    before->next = (before->next + 1) % SLI_ZSCORE_VALUES;
    before->count += before->count < SLI_ZSCORE_VALUES;
    return z;
}
