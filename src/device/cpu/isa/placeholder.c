typedef int sli_isa_placeholder;
