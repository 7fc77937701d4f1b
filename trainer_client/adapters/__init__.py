"""The gym for other trainers and environments: each module here needs the library that it is named after."""
