//! Reads whole files of every format, as excerpts in `data/`.

use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use policy::{Span, Time};
use simulator::random::Streams;
use simulator::traces::{
    Arrival, Format, FunctionInfo, Options, Placement, Series, Source, TraceError, Work, Workload,
    open, recognise, write_csv,
};
use testing::Random;

const FILES: [(&str, Format); 7] = [
    ("weir.csv", Format::Weir),
    (
        "azure-functions-2019-invocations.csv",
        Format::AzureFunctions2019,
    ),
    ("azure-functions-2021.csv", Format::AzureFunctions2021),
    ("azure-llm-2023.csv", Format::AzureLlm2023),
    ("mooncake.jsonl", Format::Mooncake),
    ("alibaba-requests-made-up.csv", Format::AlibabaRequests),
    ("torpor-samples.csv", Format::TorporSamples),
];

fn data(name: &str) -> Source {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    Source::File(folder.join(name))
}

fn options() -> Options {
    Options::new(Streams::new("formats", 11))
}

fn read(source: &Source, options: &Options) -> (Vec<FunctionInfo>, Vec<Arrival>) {
    let workload = open(source, options).expect("the file is valid");
    let arrivals: Vec<Arrival> = workload.arrivals.map(Result::unwrap).collect();
    assert!(arrivals.is_sorted_by_key(|arrival| arrival.at));
    (workload.functions, arrivals)
}

fn names(functions: &[FunctionInfo]) -> Vec<&str> {
    functions.iter().map(|function| &*function.name).collect()
}

fn at(nanos: u64, function: u32, work: Work, objective_ms: Option<u64>) -> Arrival {
    Arrival {
        at: Time(nanos),
        function,
        work,
        objective: objective_ms.map(Span::from_millis),
    }
}

#[test]
fn the_heading_determines_the_format() {
    for (name, format) in FILES {
        assert_eq!(recognise(&data(name)), Ok(format), "{name}");
        let with_format = Options {
            format: Some(format),
            ..options()
        };
        assert_eq!(
            read(&data(name), &with_format),
            read(&data(name), &options()),
            "{name}"
        );
    }
}

#[test]
fn gzip_byte_order_marks_dos_line_ends_and_blank_lines_do_not_matter() {
    for (name, _) in FILES {
        let Source::File(path) = data(name) else {
            unreachable!("data is in files")
        };
        let bytes = std::fs::read(path).unwrap();
        let plain = read(&data(name), &options());
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&bytes).unwrap();
        let packed = encoder.finish().unwrap();
        assert_eq!(
            read(&Source::bytes(name, &packed), &options()),
            plain,
            "{name}"
        );
        let text = String::from_utf8(bytes).unwrap();
        let dos = format!("\u{feff}{}", text.replace('\n', "\r\n\r\n  \n"));
        let dos = Source::bytes(name, dos.as_bytes());
        assert_eq!(read(&dos, &options()), plain, "{name}");
    }
}

#[test]
fn weirs_own_format() {
    let (functions, arrivals) = read(&data("weir.csv"), &options());
    assert_eq!(names(&functions), ["chat", "a, b", "llm"]);
    let tokens = Work::Tokens {
        input: 128,
        output: 64,
    };
    assert_eq!(
        arrivals,
        [
            at(0, 0, Work::Service(Span::from_millis(20)), Some(80)),
            at(1, 1, Work::Unstated, None),
            at(1_500_000_000, 0, Work::Service(Span(2_500_000)), None),
            at(1_500_000_000, 2, tokens, Some(500)),
        ]
    );
    let short = Source::bytes("short", b"function,arrival_s\nx,2\n");
    assert_eq!(
        read(&short, &options()).1,
        [at(2_000_000_000, 0, Work::Unstated, None)]
    );
}

/// Counts of six functions over twenty minutes.
const COUNTS_2019: [u64; 6] = [194, 156, 138, 5, 5, 0];

#[test]
fn azure_functions_2019_by_minute_with_durations_and_memory() {
    for placement in [Placement::Random, Placement::Even] {
        let options = Options {
            placement,
            durations: Some(data("azure-functions-2019-durations.csv")),
            memory: Some(data("azure-functions-2019-memory.csv")),
            ..options()
        };
        let invocations = data("azure-functions-2019-invocations.csv");
        let (functions, arrivals) = read(&invocations, &options);
        assert!(
            functions[0]
                .name
                .ends_with("/266dafac44449eaa92596aecec2df90ae31d0f422cc3786b814eeb057e131aa1")
        );
        assert_eq!(functions[0].memory_mb, Some(24.8));
        assert_eq!(functions[5].memory_mb, Some(50.8));
        let service = functions[0].service.as_ref().unwrap();
        assert_eq!(service.at(0.5), Span::from_millis(135));
        assert_eq!(service.at(1.0), Span::from_millis(18_206));
        for (function, expected) in (0..).zip(COUNTS_2019) {
            let own = arrivals
                .iter()
                .filter(|arrival| arrival.function == function);
            assert_eq!(own.count() as u64, expected, "{function}");
        }
        // Function 0 has 6 requests in the first minute and 10 in the second.
        let minute = |n: u64| {
            let within = arrivals
                .iter()
                .filter(move |a| a.function == 0 && a.at.0 / 60_000_000_000 == n);
            within.map(|a| a.at.0).collect::<Vec<_>>()
        };
        assert_eq!(
            (minute(0).len(), minute(1).len(), minute(19).len()),
            (6, 10, 11)
        );
        if placement == Placement::Even {
            let expected: Vec<u64> = (0..6).map(|n| 5_000_000_000 + n * 10_000_000_000).collect();
            assert_eq!(minute(0), expected);
        }
        for arrival in &arrivals {
            let Work::Service(span) = arrival.work else {
                panic!("a duration is expected: {arrival:?}")
            };
            let service = functions[arrival.function as usize]
                .service
                .as_ref()
                .unwrap();
            assert!(service.at(0.0) <= span && span <= service.at(1.0));
        }
    }
    let bare = read(&data("azure-functions-2019-invocations.csv"), &options());
    assert!(bare.1.iter().all(|arrival| arrival.work == Work::Unstated));
}

/// As in the published trace: memory by app, without a column of functions.
#[test]
fn azure_functions_2019_with_memory_by_app() {
    let invocations = "HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,0\no,a,g,timer,0,2\no,ab,f,http,1,1\n";
    let memory = "HashOwner,HashApp,SampleCount,AverageAllocatedMb\no,a,9,150.5\no,x,1,7\n";
    let options = Options {
        memory: Some(Source::bytes("memory", memory.as_bytes())),
        ..options()
    };
    let (functions, arrivals) = read(
        &Source::bytes("invocations", invocations.as_bytes()),
        &options,
    );
    let found: Vec<_> = functions
        .iter()
        .map(|function| function.memory_mb)
        .collect();
    assert_eq!(found, [Some(150.5), Some(150.5), None]);
    assert_eq!(arrivals.len(), 5);
}

/// Mirrors of the trace omit `Trigger`, and write columns in the order of a data frame.
#[test]
fn azure_functions_2019_columns_are_found_by_name() {
    let published =
        "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f,http,1,0,2\no,a,g,timer,0,2,1\n";
    let given = |text: &str| read(&Source::bytes("invocations", text.as_bytes()), &options());
    let expected = given(published);
    for other in [
        "HashOwner,HashApp,HashFunction,1,2,3\no,a,f,1,0,2\no,a,g,0,2,1\n",
        "3,HashFunction,1,Trigger,HashOwner,2,HashApp\n2,f,1,http,o,0,a\n1,g,0,timer,o,2,a\n",
        "HashFunction,10,8,9,HashApp,HashOwner\nf,2,1,0,a,o\ng,1,0,2,a,o\n",
    ] {
        assert_eq!(given(other), expected, "{other}");
    }
    let durations = "HashOwner,HashApp,HashFunction,Average,Count\no,a,f,10,1\n";
    let error = recognise(&Source::bytes("durations", durations.as_bytes())).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("HashOwner,HashApp,HashFunction,1,2 … (minutes)"),
        "{error}"
    );
}

/// Requests placed at random within a minute are uniform in it, and each function has a stream of its own.
#[test]
fn random_placement_is_uniform() {
    let text = "function,minute_1,minute_2\na,20000,20000\nb,20000,0\n";
    let (_, arrivals) = read(&Source::bytes("counts", text.as_bytes()), &options());
    assert_eq!(arrivals.len(), 60_000);
    for (function, minute) in [(0, 0), (0, 1), (1, 0)] {
        let mut distance: f64 = 0.0;
        let begin = minute * 60_000_000_000;
        let own = arrivals.iter().filter(|a| {
            a.function == function && (begin..begin + 60_000_000_000).contains(&a.at.0)
        });
        for (n, arrival) in (0_u32..).zip(own) {
            let found = Span(arrival.at.0 - begin).as_secs_f64() / 60.0;
            distance = distance.max((found - f64::from(n) / 20_000.0).abs());
        }
        // Kolmogorov and Smirnov: 1.95/√n is exceeded once in a thousand.
        assert!(distance < 1.95 / 20_000.0_f64.sqrt(), "{distance}");
    }
    let times = |function| {
        arrivals
            .iter()
            .filter(move |a| a.function == function)
            .take(100)
            .map(|a| a.at)
    };
    assert!(!times(0).eq(times(1)));
}

#[test]
fn azure_functions_2021_by_arrival() {
    let (functions, arrivals) = read(&data("azure-functions-2021.csv"), &options());
    assert_eq!((functions.len(), arrivals.len()), (12, 12));
    let seconds: Vec<f64> = arrivals
        .iter()
        .map(|a| Span(a.at.0).as_secs_f64())
        .collect();
    // The first row ends at 0.079 490 9 and ran for 0.078 s; it began first.
    assert_eq!(
        arrivals[0],
        at(0, 0, Work::Service(Span::from_millis(78)), None)
    );
    let second = 57.157_860_040_664_67 - 57.154 - 0.001_490_900_039_672_85;
    let found = arrivals
        .iter()
        .find(|a| a.work == Work::Service(Span::from_millis(57_154)))
        .unwrap();
    assert!(
        (Span(found.at.0).as_secs_f64() - second).abs() < 2e-9,
        "{seconds:?}"
    );
}

#[test]
fn azure_llm_and_mooncake_have_tokens() {
    let (functions, arrivals) = read(&data("azure-llm-2023.csv"), &options());
    assert_eq!(names(&functions), ["azure-llm"]);
    let tokens = |input, output| Work::Tokens { input, output };
    assert_eq!(arrivals.len(), 10);
    assert_eq!(arrivals[0], at(0, 0, tokens(374, 44), None));
    assert_eq!(arrivals[1], at(4_314_579_000, 0, tokens(396, 109), None));
    let (functions, arrivals) = read(&data("mooncake.jsonl"), &options());
    assert_eq!(names(&functions), ["mooncake"]);
    assert_eq!(arrivals.len(), 6);
    assert_eq!(arrivals[0], at(529_000_000, 0, tokens(28, 445), None));
    assert_eq!(arrivals[5], at(8_656_000_000, 0, tokens(40, 56), None));
}

#[test]
fn alibaba_requests_by_base_model() {
    let (functions, arrivals) = read(&data("alibaba-requests-made-up.csv"), &options());
    assert_eq!(names(&functions), ["M9001", "none", "M9002"]);
    let service = |ms| Work::Service(Span::from_millis(ms));
    let second = 1_000_000_000;
    assert_eq!(
        arrivals,
        [
            at(0, 0, service(12_000), None),
            at(0, 1, service(0), None),
            at(5 * second, 2, service(7_500), None),
            at(602 * second, 0, service(3_000), None),
        ]
    );
}

#[test]
fn a_series_has_times_values_and_containers() {
    let mut series = Series::open(&data("alibaba-series-made-up.csv")).unwrap();
    let samples: Vec<_> = series.by_ref().map(Result::unwrap).collect();
    let found: Vec<_> = samples
        .iter()
        .map(|s| (s.at.0 / 1_000_000_000, s.value, s.container))
        .collect();
    assert_eq!(
        found,
        [
            (0, 2000.0, Some(0)),
            (57, 4500.5, None),
            (57, 9000.0, Some(1)),
            (114, 3000.0, Some(0)),
        ]
    );
    assert_eq!(series.containers(), ["aaaa", "bbbb"]);
    let series = Series::open(&data("alibaba-series-made-up.csv")).unwrap();
    let latencies = series.latencies().unwrap();
    assert_eq!(latencies.at(0.0), Span::from_millis(2_000));
    assert_eq!(latencies.at(0.5), Span(3_750_250_000));
    assert_eq!(latencies.at(1.0), Span::from_millis(9_000));
}

#[test]
fn torpor_samples_by_minute() {
    let (functions, arrivals) = read(&data("torpor-samples.csv"), &options());
    assert_eq!(names(&functions), ["f000", "f001", "f002", "f003", "f004"]);
    for (function, expected) in [(0, 313), (1, 408), (2, 174), (3, 178), (4, 178)] {
        let found = arrivals.iter().filter(|a| a.function == function).count();
        assert_eq!(found, expected, "{function}");
    }
}

/// Writing and reading back yields the same workload.
#[test]
fn a_workload_is_unchanged_by_writing_and_reading() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let functions: Vec<FunctionInfo> = (0..=random.below(5))
            .map(|n| {
                let odd = ["", ",", " ", "ü", "'"][usize::try_from(random.below(5)).unwrap()];
                FunctionInfo::named(format!("{odd}f{n}{odd}"))
            })
            .collect();
        let mut now = 0;
        let arrivals: Vec<Arrival> = (0..=random.below(50))
            .map(|_| {
                let step = [0, 1, 999_999_999, 86_400_000_000_000];
                let step = step[usize::try_from(random.below(4)).unwrap()];
                now += random.below(step + 1);
                Arrival {
                    at: Time(now),
                    function: u32::try_from(random.below(functions.len() as u64)).unwrap(),
                    work: match random.below(3) {
                        0 => Work::Unstated,
                        1 => Work::Service(Span(random.below(1 << 50))),
                        _ => Work::Tokens {
                            input: u32::try_from(random.below(100_000)).unwrap(),
                            output: u32::try_from(random.below(100_000)).unwrap(),
                        },
                    },
                    objective: (random.below(2) == 0).then(|| Span(1 + random.below(1 << 45))),
                }
            })
            .collect();
        let workload = Workload {
            functions: functions.clone(),
            arrivals: arrivals.iter().copied().map(Ok::<_, TraceError>),
        };
        let mut csv = Vec::new();
        let written = write_csv(workload, &mut csv).unwrap();
        assert_eq!(written, arrivals.len() as u64, "seed {seed}");
        let (read_functions, read) = read(&Source::bytes("own", &csv), &options());
        assert_eq!(read.len(), arrivals.len(), "seed {seed}");
        for (read, arrival) in read.into_iter().zip(arrivals) {
            let name = &functions[arrival.function as usize].name;
            assert_eq!(
                &read_functions[read.function as usize].name, name,
                "seed {seed}"
            );
            let function = arrival.function;
            assert_eq!(Arrival { function, ..read }, arrival, "seed {seed}");
        }
    }
}

#[test]
fn a_name_that_cannot_be_written_is_an_error() {
    for name in ["", "a\"b", "a\nb"] {
        let workload = Workload {
            functions: vec![FunctionInfo::named(name.to_owned())],
            arrivals: std::iter::empty(),
        };
        let error = write_csv(workload, &mut Vec::new())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("without quotes and control characters"),
            "{error}"
        );
    }
    let unknown = Workload {
        functions: vec![FunctionInfo::named("a".to_owned())],
        arrivals: std::iter::once(Ok(at(0, 1, Work::Unstated, None))),
    };
    let error = write_csv(unknown, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(
        error,
        "an arrival refers to function 1, but there are only 1"
    );
}
