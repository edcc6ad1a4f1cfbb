// Catch2 version 2 has its main in a header; version 3 links one.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
