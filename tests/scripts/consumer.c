/* A program that uses sluice as installed: saves a tensor and loads it again. */
#include <sluice/safetensors.h>

#include <stdio.h>

int main(int count, char **arguments)
{
    float saved[2] = {1.5F, -2.0F}, loaded[2] = {0};
    sl_safetensors_item item = {"w", SL_F32, {1, {2}}, saved};
    if (count != 2 || sl_safetensors_save(arguments[1], &item, 1, NULL, 0) != SL_OK)
        return 1;
    item.data = loaded;
    if (sl_safetensors_load(arguments[1], &item, 1) != SL_OK) {
        fprintf(stderr, "%s\n", sl_error_text());
        return 1;
    }
    return saved[0] == loaded[0] && saved[1] == loaded[1] ? 0 : 1;
}
