/* What a program tells the supervisor that started it. */
#include "sluice/launch.h"
#include "support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void set_link(int fd)
{
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    setenv("SLUICE_LAUNCH_FD", text, 1);
}

static void check_packet(int fd, const char *expected)
{
    char packet[4096];
    ssize_t bytes = recv(fd, packet, sizeof packet - 1, MSG_DONTWAIT);
    packet[bytes > 0 ? bytes : 0] = '\0';
    assert_string_equal(packet, expected);
}

static void saves_and_errors_are_packets(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    set_link(ends[1]);
    sl_launch_link *link = sl_launch_link_open();
    assert_non_null(link);
    assert_null(getenv("SLUICE_LAUNCH_FD"));
    assert_true(fcntl(ends[1], F_GETFD) & FD_CLOEXEC);
    sl_launch_link_saving(link, true);
    sl_launch_link_saving(link, true); /* of two saves the first to end is not the last */
    sl_launch_link_saving(link, false);
    sl_launch_link_saving(link, false);
    assert_true(sl_launch_link_error(link, "the disk is full"));
    check_packet(ends[0], "saving");
    check_packet(ends[0], "saving");
    check_packet(ends[0], "saving");
    check_packet(ends[0], "saved");
    check_packet(ends[0], "error the disk is full");
    close(ends[0]);
    assert_false(sl_launch_link_error(link, "no process reads this"));
    sl_launch_link_close(&link);
    assert_null(link);
}

static void process_without_a_supervisor_has_no_link(void **state)
{
    (void)state;
    int file = open("/dev/null", O_RDWR);
    unsetenv("SLUICE_LAUNCH_FD");
    assert_null(sl_launch_link_open());
    set_link(file); /* a shell has opened another file under the number */
    assert_null(sl_launch_link_open());
    setenv("SLUICE_LAUNCH_FD", "three", 1);
    assert_null(sl_launch_link_open());
    assert_null(getenv("SLUICE_LAUNCH_FD"));
    sl_launch_link_saving(NULL, true);
    assert_false(sl_launch_link_error(NULL, "not sent"));
    close(file);
}

int link_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_and_errors_are_packets),
        cmocka_unit_test(process_without_a_supervisor_has_no_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
