/* Texts in HTML, SVG and CSV files. What a log says is untrusted: it is shown, never run. */
#ifndef SLI_REPORT_MARKUP_H
#define SLI_REPORT_MARKUP_H

#include <stdio.h>

/* Writes a text as content or as an attribute's value: < > & " and ' as references. Control
 * characters, and bytes that are not UTF-8, become U+FFFD. */
void sli_markup_text(FILE *file, const char *text);

/* Writes a field of a CSV file (RFC 4180), in quotes where it needs them. */
void sli_csv_text(FILE *file, const char *text);

/* Writes a number with four significant digits and a large or small one with an exponent:
 * "1.234e+09"; a dash for NaN. */
void sli_markup_number(FILE *file, double value);

/* Writes bytes as "1.25 GiB"; a dash for NaN. */
void sli_markup_bytes(FILE *file, double bytes);

#endif
