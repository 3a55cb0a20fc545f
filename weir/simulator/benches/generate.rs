//! Cost of generating an arrival. The simulator should process 250,000 requests a second with all policies and a
//! million without, so an arrival must cost well below a microsecond.

use divan::{Bencher, black_box};
use simulator::generate::{Mix, Rates, Spec, generate, named_shape};
use simulator::random::{Purpose, Streams};

fn main() {
    divan::main();
}

const FUNCTIONS: [u32; 3] = [40, 480, 10_000];

fn arrival(bencher: Bencher<'_, '_>, functions: u32, shape: &str) {
    let spec = Spec {
        experiment: "bench".to_owned(),
        seed: 1,
        functions,
        warm_up_s: 0.0,
        counted_s: 3e8,
        rates: Rates::LogUniform {
            min_per_minute: 5.0,
            max_per_minute: 30.0,
        },
        total_per_minute: None,
        shape: named_shape(shape).expect("the shape exists"),
        daily: None,
        models: Vec::new(),
        mix: Mix::Turns,
    };
    let mut arrivals = generate(&spec).expect("the spec is valid").arrivals;
    bencher.bench_local(|| black_box(arrivals.next()).is_some());
}

#[divan::bench(args = FUNCTIONS)]
fn poisson(bencher: Bencher<'_, '_>, functions: u32) {
    arrival(bencher, functions, "poisson");
}

#[divan::bench(args = FUNCTIONS)]
fn uneven(bencher: Bencher<'_, '_>, functions: u32) {
    arrival(bencher, functions, "uneven");
}

#[divan::bench(args = FUNCTIONS)]
fn bursty(bencher: Bencher<'_, '_>, functions: u32) {
    arrival(bencher, functions, "bursty");
}

#[divan::bench]
fn a_normal_number(bencher: Bencher<'_, '_>) {
    let mut stream = Streams::new("bench", 1).stream(Purpose::Noise, 0);
    bencher.bench_local(|| black_box(stream.normal()));
}
