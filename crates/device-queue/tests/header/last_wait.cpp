// A program that waits for an event that never happens: on a queue, and for a signal. With an argument, the timeout
// ends the program; otherwise it prints how the wait ended.
#include <stdio.h>
#include <string.h>

#include "trunkline/device.h"

using namespace trunkline;

int main(int count, char **arguments) {
    u64 words[2] = {0, 0}, value = 0;
    bool dies = count > 2, by_time = count > 1 && strcmp(arguments[1], "time") == 0;
    Budget budget = by_time ? until(now() + 1000) : looks(5);
    if (dies) budget = or_die(budget);
    Wait how = wait(poisoned_slot(words), Condition{AT_LEAST, 1}, budget, value);
    printf("%u\n", how.kind);
    return 0;
}
