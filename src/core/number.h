/* Numbers in the form that files have, with a point before the decimals, whatever locale a program
 * has chosen: printf and strtod follow the thread's. jansson does so by itself. */
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

/* Prints a number into `text` [SLI_NUMBER_BYTES], in as few digits, from 6 up, as are read as the
 * same double again, or as the same float. Returns the double that the digits are: for a float,
 * 0.9 instead of 0.89999997615814209. */
double sli_number_print(double value, bool is_float, char *text);

#endif
