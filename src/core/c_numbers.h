/* Numbers in the form that files have, with a point before the decimals, whatever locale a program
 * has chosen: printf and strtod follow the thread's. jansson does so by itself. */
#ifndef SLI_CORE_C_NUMBERS_H
#define SLI_CORE_C_NUMBERS_H

#include <locale.h>

typedef struct sli_c_numbers {
    locale_t own, before;
} sli_c_numbers;

/* Gives this thread the locale "C" until sli_c_numbers_end; one pair may lie within another. */
static inline sli_c_numbers sli_c_numbers_begin(void)
{
    locale_t own = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* static: there is always one */
    return (sli_c_numbers){own, uselocale(own)};
}

static inline void sli_c_numbers_end(sli_c_numbers scope)
{
    uselocale(scope.before);
    freelocale(scope.own);
}

#endif
