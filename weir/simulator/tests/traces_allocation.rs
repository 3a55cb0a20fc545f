//! Iterating over arrivals does not allocate: memory grows with functions and not with requests.

use std::hint::black_box;

use simulator::generate::{generate, preset};
use simulator::random::Streams;
use simulator::traces::{Options, Source, open};

#[test]
fn synthetic_arrivals_do_not_allocate() {
    for name in ["torpor-node", "torpor-highfreq", "torpor-lowfreq"] {
        let mut arrivals = generate(&preset(name).unwrap().spec()).unwrap().arrivals;
        let allocated = allocation_counter::measure(|| {
            for _ in 0..10_000 {
                black_box(arrivals.next());
            }
        });
        assert_eq!(allocated.count_total, 0, "{name}");
    }
}

#[test]
fn arrivals_of_traces_do_not_allocate() {
    let mut rows = "arrival_s,function,service_ms\n".to_owned();
    for n in 0..5_000 {
        rows.push_str(&format!("{n}.123456789,function-{},20.5\n", n % 7));
    }
    let counts = "function,minute_1,minute_2\na,5000,6000\nb,10,7000\n".to_owned();
    for text in [rows, counts] {
        let options = Options::new(Streams::new("allocation", 1));
        let mut arrivals = open(&Source::bytes("trace", text.as_bytes()), &options)
            .unwrap()
            .arrivals;
        // The buffers of lines and fields grow with the first rows.
        black_box((&mut arrivals).take(1_500).count());
        let allocated = allocation_counter::measure(|| {
            for _ in 0..3_000 {
                black_box(arrivals.next());
            }
        });
        assert_eq!(allocated.count_total, 0);
    }
}
