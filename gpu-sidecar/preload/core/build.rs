//! Links against the oldest C library that the preload library supports.

fn main() {
    preload_floor::link();
}
