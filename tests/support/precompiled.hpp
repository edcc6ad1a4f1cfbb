// What nearly every test includes, compiled once (cmake/layers.cmake).
#pragma once

#include "../../src/precompiled.hpp"
#include "support/catch.hpp"
