#include "core/number.h"

#include <stdio.h>
#include <stdlib.h>

sli_c_numbers sli_c_numbers_begin(void)
{
    locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* static: there is always one */
    return (sli_c_numbers){own, uselocale(own)};
}

void sli_c_numbers_end(sli_c_numbers scope)
{
    uselocale(scope.before);
    freelocale(scope.own);
}

double sli_number_print(double value, bool is_float, char *text)
{
    int precision = 6, most = is_float ? 9 : 17;
    double read;
    sli_c_numbers scope = sli_c_numbers_begin();
    do {
        snprintf(text, SLI_NUMBER_BYTES, "%.*g", precision++, value);
        read = strtod(text, NULL);
    } while (precision <= most && (is_float ? (double)strtof(text, NULL) : read) != value);
    sli_c_numbers_end(scope);
    return read;
}
