#include "cli/command_line.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

static bool is_plain(const char *word)
{
    for (const char *at = word; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("_-./=:,+@%", *at))
            return false;
    return *word != '\0';
}

static void print_word(FILE *to, const char *word)
{
    if (is_plain(word)) {
        fputs(word, to);
        return;
    }
    fputc('\'', to);
    for (const char *at = word; *at; at++)
        if (*at == '\'')
            fputs("'\\''", to);
        else
            fputc(*at, to);
    fputc('\'', to);
}

void cli_print_command(FILE *to, int argc, char *const *argv, const char *without)
{
    size_t length = strlen(without);
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], without, length) == 0 &&
            (argv[i][length] == '\0' || argv[i][length] == '=')) {
            i += argv[i][length] == '\0'; /* its value is the next word */
            continue;
        }
        if (i > 0)
            fputc(' ', to);
        if (i == 0) /* the program and its command */
            fputs(argv[i], to);
        else
            print_word(to, argv[i]);
    }
}
