//! Links against the oldest C library that will do.

fn main() {
    preload_floor::link();
}
