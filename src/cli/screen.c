/* A run's terminal: lines on standard output, each with "[RANK r]: " in front where there are
 * several replicas, the first rank's progress line between them, and warnings. */
#define _GNU_SOURCE /* vasprintf */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

void cli_screen_create(cli_screen *screen, int replicas, bool live)
{
    *screen = (cli_screen){.replicas = replicas, .live = live};
    pthread_mutex_init(&screen->lock, NULL);
}

/* With `lock` held. */
static void clear_live(cli_screen *screen)
{
    if (screen->live_shown)
        fputs("\r\033[K", stderr);
    screen->live_shown = false;
}

void cli_screen_clear(cli_screen *screen)
{
    clear_live(screen);
    pthread_mutex_destroy(&screen->lock);
}

void cli_screen_draw_live(cli_screen *screen, const char *format, ...)
{
    const double pause = 0.1; /* a person cannot read faster */
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    double now = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
    if (!screen->live || now - screen->live_time < pause)
        return;
    screen->live_time = now;
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&screen->lock);
    screen->live_shown = true;
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, arguments);
    pthread_mutex_unlock(&screen->lock);
    va_end(arguments);
}

/* It is one write even where MPI has taken standard output's buffer away: the lines of other
 * processes come between writes. */
void cli_screen_print(cli_screen *screen, int rank, const char *format, va_list arguments)
{
    char *line, name[32] = "";
    if (vasprintf(&line, format, arguments) < 0)
        return;
    char *shown = sl_escape_text(line, false);
    free(line);
    if (!shown)
        return;
    if (screen->replicas > 1)
        snprintf(name, sizeof name, "[RANK %d]: ", rank);
    pthread_mutex_lock(&screen->lock);
    clear_live(screen);
    printf("%s%s\n", name, shown);
    fflush(stdout);
    pthread_mutex_unlock(&screen->lock);
    free(shown);
}

void cli_screen_warn(cli_screen *screen, const char *format, ...)
{
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int bytes = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (bytes < 0)
        return;
    pthread_mutex_lock(&screen->lock);
    clear_live(screen);
    cli_complain("warning: %s", text);
    pthread_mutex_unlock(&screen->lock);
    free(text);
}
