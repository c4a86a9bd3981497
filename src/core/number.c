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

sli_number_text sli_number_print(double value, bool is_float)
{
    int precision = 6, most = is_float ? 9 : 17;
    sli_number_text printed;
    sli_c_numbers scope = sli_c_numbers_begin();
    do {
        snprintf(printed.text, sizeof printed.text, "%.*g", precision++, value);
        printed.value = strtod(printed.text, NULL);
    } while (precision <= most &&
             (is_float ? (double)strtof(printed.text, NULL) : printed.value) != value);
    sli_c_numbers_end(scope);
    return printed;
}
