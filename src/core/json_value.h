/* Values for JSON that JSON itself does not have. */
#ifndef SLI_CORE_JSON_VALUE_H
#define SLI_CORE_JSON_VALUE_H

#include "sluice/option.h"

#include <jansson.h>

/* null for NaN and infinity. */
json_t *sli_json_number(double value);

/* JSON is UTF-8, names of files are any bytes: what is none becomes U+FFFD. NULL for NULL. */
json_t *sli_json_text(const char *text);

/* An option's value; NULL where it is not set or there is no memory. `exact`: a float as the double
 * that it is and a seed as a string, as a run's state has them; else a float in as few digits as
 * give the same one, and a seed as a number where JSON's readers can hold it. */
json_t *sli_json_option(const sl_option *option, const void *object, bool exact);

#endif
