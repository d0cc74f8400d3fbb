//! One step up the stack, by SFrame rows or frame pointers
