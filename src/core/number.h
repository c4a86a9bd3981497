/* Numbers with a decimal point in every locale, as files have them: printf and strtod follow the
 * thread's locale. (jansson does this by itself.) */
#ifndef SLI_CORE_NUMBER_H
#define SLI_CORE_NUMBER_H

#include <locale.h>
#include <stdbool.h>

typedef struct sli_c_numbers {
    locale_t own, before;
} sli_c_numbers;

/* Gives this thread the locale "C" until sli_c_numbers_end; one pair may lie within another. */
sli_c_numbers sli_c_numbers_begin(void);
void sli_c_numbers_end(sli_c_numbers scope);

enum { SLI_NUMBER_BYTES = 32 };

typedef struct sli_number_text {
    char text[SLI_NUMBER_BYTES];
    double value; /* of the digits as a double: for a float, 0.9 instead of 0.89999997615814209 */
} sli_number_text;

/* Prints a number with the fewest digits, at least 6, that read as the same double, or as the same
 * float. */
sli_number_text sli_number_print(double value, bool is_float);

#endif
