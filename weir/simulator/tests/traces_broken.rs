//! Invalid files: every error names the file, the line, the column and what is allowed.

use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use simulator::random::Streams;
use simulator::traces::{
    Format, LINE_MAX, Options, Problem, Series, Source, TraceError, UNPACKED_FREELY, UNPACKED_MAX,
    open, recognise,
};

const FILES: [&str; 7] = [
    "weir.csv",
    "azure-functions-2019-invocations.csv",
    "azure-functions-2021.csv",
    "azure-llm-2023.csv",
    "mooncake.jsonl",
    "alibaba-requests-made-up.csv",
    "torpor-samples.csv",
];

fn bytes(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    std::fs::read(folder.join(name)).expect("the file is part of the repository")
}

fn options() -> Options {
    Options::new(Streams::new("broken", 11))
}

fn count(bytes: &[u8]) -> Result<usize, TraceError> {
    let workload = open(&Source::bytes("FILE", bytes), &options())?;
    let mut count = 0;
    for arrival in workload.arrivals {
        arrival?;
        count += 1;
    }
    Ok(count)
}

fn error(text: &str) -> String {
    count(text.as_bytes())
        .expect_err("the file is invalid")
        .to_string()
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(bytes)
        .expect("writing to memory succeeds");
    encoder.finish().expect("writing to memory succeeds")
}

/// A file of a megabyte that unpacks to a gigabyte is refused at the bound on the ratio, before the memory is full.
#[test]
fn a_gzip_bomb_is_refused_at_the_bound() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder
        .write_all(b"arrival_s,function\n")
        .expect("writing to memory succeeds");
    let rows = b"0,f\n".repeat(1 << 18);
    for _ in 0..1_000 {
        encoder
            .write_all(&rows)
            .expect("writing to memory succeeds");
    }
    let bomb = encoder.finish().expect("writing to memory succeeds");
    let error = count(&bomb).expect_err("the file is refused");
    assert_eq!(
        error.problem(),
        &Problem::Unpacked {
            ratio: UNPACKED_MAX,
            freely: UNPACKED_FREELY
        }
    );
    let line = error.line().expect("the error has a line");
    assert!(line < 8 << 20, "of 262 million lines, {line} were read");
    // A file which unpacks at a trace's usual ratio is read.
    assert_eq!(
        count(&packed(&[&b"arrival_s,function\n"[..], &rows].concat())),
        Ok(1 << 18)
    );
}

/// A format, a row after its first valid row, and the beginning of the error message.
#[test]
fn invalid_rows_name_line_column_and_allowed_values() {
    let weir = "arrival_s,function,service_ms,objective_ms,input_tokens,output_tokens\n1,a,2,3,,\n";
    let azure_2019 = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f,http,0,1,2\n";
    let azure_2021 = "app,func,end_timestamp,duration\na,f,2.5,0.5\n";
    let llm = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n";
    let mooncake =
        "{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0]}\n";
    let alibaba =
        "gmt_create,exec_time_seconds,checkpoint_model_version_id\n2031-01-01 00:00:01,2.0,M1\n";
    let torpor = "function,minute_1,minute_2\nf0,1,2\n";
    for (file, row, message) in [
        (
            weir,
            "0.5,a,,,,",
            "line 3: arrival_s is earlier than in the row above: rows in the order of arrival",
        ),
        (
            weir,
            "x,a,,,,",
            "line 3: arrival_s is \"x\": a number from 0 to 316224000 is needed",
        ),
        (weir, "-2,a,,,,", "line 3: arrival_s is \"-2\""),
        (weir, "nan,a,,,,", "line 3: arrival_s is \"nan\""),
        (
            weir,
            "316224001,a,,,,",
            "line 3: arrival_s is \"316224001\"",
        ),
        (
            weir,
            "2,,,,,",
            "line 3: function is \"\": a name of 1 to 256 bytes",
        ),
        (weir, "2,a\tb,,,,", "line 3: function is \"a\\tb\""),
        (
            weir,
            "2,a,fast,,,",
            "line 3: service_ms is \"fast\": a number from 0 to",
        ),
        (
            weir,
            "2,a,,0,,",
            "line 3: objective_ms is \"0\": a number above 0",
        ),
        (
            weir,
            "2,a,,,7,",
            "line 3: input_tokens is \"7\": an empty field, or output_tokens as well, is needed",
        ),
        (
            weir,
            "2,a,,,,7",
            "line 3: output_tokens is \"7\": an empty field, or input_tokens as well, is needed",
        ),
        (
            weir,
            "2,a,5,,7,7",
            "line 3: service_ms is \"5\": an empty field beside tokens is needed",
        ),
        (
            weir,
            "2,a,,,1.5,7",
            "line 3: input_tokens is \"1.5\": a whole number from 0 to 100000000",
        ),
        (
            weir,
            "2,a",
            "line 3: 2 fields: 6 are needed, as in the heading",
        ),
        (weir, "2,a,,,,,", "line 3: 7 fields: 6 are needed"),
        (
            weir,
            "2,\"a,,,,",
            "line 3: function: the quote is not closed before a comma",
        ),
        (
            azure_2019,
            "o,a,g,http,0,-1,2",
            "line 3: 2 is \"-1\": a whole number from 0 to 100000000 is needed",
        ),
        (
            azure_2019,
            "o,a,g,http,0,,2",
            "line 3: 2 is \"\": a whole number",
        ),
        (azure_2019, "o,a,g,http,0,1e3,2", "line 3: 2 is \"1e3\""),
        (
            azure_2019,
            "o,a,g,http,0,1",
            "line 3: 6 fields: 7 are needed",
        ),
        (
            azure_2019,
            "o,,g,http,0,1,1",
            "line 3: HashApp is \"\": a name",
        ),
        (
            azure_2019,
            "o,a,f,http,0,1,1",
            "line 3: HashOwner/HashApp/HashFunction is \"o/a/f\", as in a row above",
        ),
        (
            azure_2021,
            "a,f,soon,0.5",
            "line 3: end_timestamp is \"soon\": a number from 0",
        ),
        (
            azure_2021,
            "a,f,3,-0.5",
            "line 3: duration is \"-0.5\": a number from 0",
        ),
        (azure_2021, "a,,3,0.5", "line 3: func is \"\": a name"),
        (azure_2021, "a,f,3", "line 3: 3 fields: 4 are needed"),
        (
            llm,
            "yesterday,1,1",
            "line 3: TIMESTAMP is \"yesterday\": a time such as 2023-11-16 18:15:46.6805900",
        ),
        (
            llm,
            "2023-11-16 18:15:46.6805899,1,1",
            "line 3: TIMESTAMP is earlier than in the row above",
        ),
        (
            llm,
            "2053-11-16 18:15:47,1,1",
            "line 3: TIMESTAMP is more than ten years after the first",
        ),
        (
            llm,
            "2023-11-16 18:15:47,many,1",
            "line 3: ContextTokens is \"many\": a whole number",
        ),
        (
            llm,
            "2023-11-16 18:15:47,1,-1",
            "line 3: GeneratedTokens is \"-1\": a whole number",
        ),
        (
            llm,
            "2023-11-16 18:15:47,1",
            "line 3: 2 fields: 3 are needed",
        ),
        (
            mooncake,
            "{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1}",
            "line 2: timestamp is earlier",
        ),
        (
            mooncake,
            "{\"timestamp\": 6, \"input_length\": 1}",
            "line 2: column 35: missing field `output_length`: an object with timestamp",
        ),
        (
            mooncake,
            "{\"timestamp\": 6, \"input_length\": -1, \"output_length\": 1}",
            "line 2: column 35: invalid value: integer `-1`, expected u32",
        ),
        (
            mooncake,
            "{\"timestamp\": 6, \"input_le",
            "line 2: column 26: EOF while parsing",
        ),
        (
            mooncake,
            "{\"timestamp\": 999999999999999, \"input_length\": 1, \"output_length\": 1}",
            "line 2: column 1: timestamp is above",
        ),
        (
            mooncake,
            "6,1,1",
            "line 2: column 1: invalid type: integer `6`",
        ),
        (
            alibaba,
            "2031-01-01,2.0,M1",
            "line 3: gmt_create is \"2031-01-01\": a time such as",
        ),
        (
            alibaba,
            "2031-01-01 00:00:00,2.0,M1",
            "line 3: gmt_create is earlier than in the row above",
        ),
        (
            alibaba,
            "2031-01-01 00:00:02,,M1",
            "line 3: exec_time_seconds is \"\": a number from 0",
        ),
        (
            alibaba,
            "2031-01-01 00:00:02,1.0",
            "line 3: 2 fields: 3 are needed",
        ),
        (
            torpor,
            "f1,1,x",
            "line 3: minute_2 is \"x\": a whole number",
        ),
        (torpor, "f1,1", "line 3: 2 fields: 3 are needed"),
        (
            torpor,
            "f0,1,1",
            "line 3: function is \"f0\", as in a row above: one row for each function",
        ),
    ] {
        assert!(count(file.as_bytes()).unwrap() > 0, "{file}");
        let found = error(&format!("{file}{row}\n"));
        assert!(
            found.starts_with(&format!("FILE: {message}")),
            "{row}\n{found}\n{message}"
        );
    }
}

#[test]
fn invalid_headings_are_refused() {
    for (text, message) in [
        (
            "time,name\n1,2\n",
            "FILE: line 1: the heading is of no known format: \"time,name\"; one with these columns is needed: arrival_s,function or",
        ),
        (
            "arrival_s,function,function\n",
            "FILE: line 1: the heading has the column function twice",
        ),
        (
            "arrival_s,function,\"x\n",
            "FILE: line 1: column 3: the quote is not closed",
        ),
        (
            "function,minute_1,minute_3\nf,1,2\n",
            "FILE: line 1: the heading has no column minute_2, but minute_3 after it",
        ),
        (
            "HashOwner,HashApp,HashFunction,Trigger\no,a,f,x\n",
            "FILE: line 1: the heading is of no known format: \"HashOwner,HashApp,HashFunction,Trigger\"; one with these columns is needed",
        ),
        (
            "HashOwner,HashApp,HashFunction,Trigger,1,4,2\no,a,f,x,1,2,3\n",
            "FILE: line 1: the heading has no column 3, but 4 after it",
        ),
        (
            "HashOwner,HashApp,HashFunction,1,2,02\no,a,f,1,2,3\n",
            "FILE: line 1: the heading has the column 2 twice",
        ),
    ] {
        let found = error(text);
        assert!(found.starts_with(message), "{found}");
    }
    for format in Format::ALL {
        let options = Options {
            format: Some(format),
            ..options()
        };
        let source = Source::bytes("FILE", b"some,thing\n1,2\n");
        let found = open(&source, &options).unwrap_err();
        match format.columns().first() {
            Some(column) => assert_eq!(
                found.problem(),
                &Problem::ColumnMissing {
                    column: (*column).to_owned()
                }
            ),
            None => assert!(matches!(found.problem(), Problem::Json { .. })),
        }
    }
}

#[test]
fn files_without_rows_are_refused() {
    for text in ["", "\n\n", "\u{feff}"] {
        assert_eq!(
            error(text),
            "FILE: the file is empty: a heading is needed",
            "{text:?}"
        );
    }
    let empty = packed(b"");
    assert_eq!(count(&empty).unwrap_err().problem(), &Problem::Empty);
    for name in FILES {
        if name == "mooncake.jsonl" {
            continue;
        }
        let text = String::from_utf8(bytes(name)).unwrap();
        let heading = format!("{}\n", text.lines().next().unwrap());
        assert_eq!(
            error(&heading),
            "FILE: there are no rows: at least one is needed",
            "{name}"
        );
    }
    let json = Options {
        format: Some(Format::Mooncake),
        ..options()
    };
    let found = open(&Source::bytes("FILE", b""), &json).unwrap_err();
    assert_eq!(found.problem(), &Problem::Empty);
}

/// A file truncated within a line is an error of that line, unless the rest happens to be a complete row: only
/// numbers at the end of a row can lose digits unnoticed, and never in Weir's own format.
#[test]
fn truncated_files_are_refused() {
    for name in FILES {
        let whole = bytes(name);
        let heading = whole.iter().position(|&byte| byte == b'\n').unwrap();
        for cut in 1..whole.len() {
            let part = &whole[..cut];
            let line = part.iter().filter(|&&byte| byte == b'\n').count() as u64 + 1;
            let row = part.rsplit(|&byte| byte == b'\n').next().unwrap();
            match count(part) {
                Ok(_) => {
                    let at_row = part.ends_with(b"\n") && line > 2 || name == "mooncake.jsonl";
                    let last = row.iter().rev().take_while(|byte| **byte != b',').count();
                    let commas = |row: &[u8]| row.iter().filter(|&&byte| byte == b',').count();
                    let in_last = commas(row) == commas(&whole[..heading]) && last > 0;
                    // The name of a base model is text; a truncated count of LoRAs may be empty.
                    let in_text =
                        name.starts_with("alibaba") && commas(row) == commas(&whole[..heading]);
                    assert!(
                        at_row || (name != "weir.csv" && (in_last || in_text)),
                        "{name} {cut}"
                    );
                }
                Err(error) => match error.line() {
                    Some(found) => assert_eq!(found, line, "{name} {cut}: {error}"),
                    None => assert!(
                        matches!(error.problem(), Problem::NoRows | Problem::Empty),
                        "{name} {cut}: {error}"
                    ),
                },
            }
        }
    }
    let own = "arrival_s,function\n1,a\n25,b";
    assert_eq!(
        error(own),
        "FILE: line 3: the last line has no line end: the file may be truncated"
    );
}

#[test]
fn truncated_and_corrupt_gzip_files_are_refused() {
    for name in FILES {
        let whole = packed(&bytes(name));
        for cut in 2..whole.len() {
            let error = count(&whole[..cut]).unwrap_err();
            assert_eq!(error.problem(), &Problem::GzipCut, "{name} {cut}: {error}");
        }
        let mut broken = whole.clone();
        let check = broken.len() - 6;
        broken[check] ^= 1;
        let error = count(&broken).unwrap_err();
        assert!(
            matches!(error.problem(), Problem::GzipBroken(_)),
            "{name}: {error}"
        );
    }
}

#[test]
fn bytes_that_are_not_utf_8_are_refused() {
    for name in FILES {
        let mut whole = bytes(name);
        let second = whole.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        whole[second + 3] = 0xFF;
        assert_eq!(
            count(&whole).unwrap_err().to_string(),
            "FILE: line 2: byte 4 of the line is not UTF-8",
            "{name}"
        );
    }
}

#[test]
fn a_line_beyond_the_bound_is_not_buffered() {
    let long = format!("arrival_s,function\n1,{}\n", "a".repeat(LINE_MAX));
    let found = error(&long);
    assert_eq!(
        found,
        format!("FILE: line 2: the line is too long: at most {LINE_MAX} bytes are allowed")
    );
    // The same file, compressed to a thousandth.
    assert_eq!(count(&packed(long.as_bytes())).unwrap_err().line(), Some(2));
}

#[test]
fn a_missing_file_is_named() {
    let error = recognise(&Source::File("/nonexistent/trace.csv".into())).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("/nonexistent/trace.csv: cannot be read: "),
        "{text}"
    );
}

#[test]
fn durations_and_memory_are_checked_too() {
    let invocations = Source::bytes(
        "INVOCATIONS",
        b"HashOwner,HashApp,HashFunction,Trigger,1\no,a,f,x,1\n",
    );
    let durations_heading = "HashOwner,HashApp,HashFunction,percentile_Average_0,percentile_Average_1,percentile_Average_25,percentile_Average_50,percentile_Average_75,percentile_Average_99,percentile_Average_100";
    for (text, message) in [
        (
            "o,a,f,1,2,3,4,5,6,x".to_owned(),
            "DURATIONS: line 2: percentile_Average_100 is \"x\": a number",
        ),
        (
            "o,a,f,1,2,3,4,5,6,5".to_owned(),
            "DURATIONS: line 2: percentile_Average_100 is \"5\": at least the percentile before it is needed",
        ),
        (
            "o,a,f,1,2,3,4,5,6".to_owned(),
            "DURATIONS: line 2: 9 fields: 10 are needed",
        ),
        (
            "o,a,f,1,2,3,4,5,6,7\no,a,f,1,2,3,4,5,6,7".to_owned(),
            "DURATIONS: line 3: HashOwner/HashApp/HashFunction is \"o/a/f\", as in a row above",
        ),
    ] {
        let text = format!("{durations_heading}\n{text}\n");
        let durations = Some(Source::bytes("DURATIONS", text.as_bytes()));
        let options = Options {
            durations,
            ..options()
        };
        let found = open(&invocations, &options).unwrap_err().to_string();
        assert!(found.starts_with(message), "{found}");
    }
    for (text, message) in [
        (
            "HashOwner,HashApp\no,a",
            "MEMORY: line 1: the heading has no column AverageAllocatedMb",
        ),
        (
            "HashOwner,HashApp,AverageAllocatedMb\no,a,-1",
            "MEMORY: line 2: AverageAllocatedMb is \"-1\": a number from 0",
        ),
        (
            "HashOwner,HashApp,AverageAllocatedMb\no,a,1\no,a,1",
            "MEMORY: line 3: HashOwner/HashApp/HashFunction is \"o/a/f\", as in",
        ),
    ] {
        let memory = Some(Source::bytes("MEMORY", text.as_bytes()));
        let options = Options {
            memory,
            ..options()
        };
        let found = open(&invocations, &options).unwrap_err().to_string();
        assert!(found.starts_with(message), "{found}");
    }
}

#[test]
fn invalid_series_are_refused() {
    let heading = "timestamp_anon,value,container_ip\n5.0,1.0,c\n";
    for (row, message) in [
        (
            "4.0,1.0,c",
            "FILE: line 3: timestamp_anon is earlier than in the row above",
        ),
        (
            "x,1.0,c",
            "FILE: line 3: timestamp_anon is \"x\": a number from 0",
        ),
        ("6.0,,c", "FILE: line 3: value is \"\": a number from 0"),
        ("6.0,-1,c", "FILE: line 3: value is \"-1\": a number from 0"),
        ("6.0,1", "FILE: line 3: 2 fields: 3 are needed"),
        (
            "900000000.0,1,c",
            "FILE: line 3: timestamp_anon is more than ten years after",
        ),
    ] {
        let text = format!("{heading}{row}\n5.0,1.0,c\n");
        let mut series = Series::open(&Source::bytes("FILE", text.as_bytes())).unwrap();
        assert!(series.next().unwrap().is_ok());
        let found = series.next().unwrap().unwrap_err().to_string();
        assert!(found.starts_with(message), "{found}");
        assert!(series.next().is_none());
    }
    let error = Series::open(&Source::bytes("FILE", b"timestamp_anon,value\n")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "FILE: line 1: the heading has no column container_ip"
    );
    let none = Series::open(&Source::bytes(
        "FILE",
        b"timestamp_anon,value,container_ip\n",
    ))
    .unwrap();
    assert_eq!(none.latencies().unwrap_err().problem(), &Problem::NoRows);
}

/// A file that changes between the two passes yields an error and then nothing. It is longer than the read buffer.
#[test]
fn a_file_that_changes_between_the_passes_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let begin = format!("arrival_s,function\n{}", "1.000000000,a\n".repeat(20_000));
    for (end, line) in [
        ("1,a\n2,c\n", Some(20_003)),
        ("1,a\n0,b\n", Some(20_003)),
        ("1,a\n", None),
        ("1,a\n2,b\n3,a\n", Some(20_004)),
    ] {
        std::fs::write(file.path(), format!("{begin}1,a\n2,b\n")).unwrap();
        let source = Source::File(file.path().to_owned());
        let mut arrivals = open(&source, &options()).unwrap().arrivals;
        std::fs::write(file.path(), format!("{begin}{end}")).unwrap();
        let found = arrivals.find_map(Result::err).unwrap();
        assert_eq!(
            (found.problem(), found.line()),
            (&Problem::Changed, line),
            "{end:?}"
        );
        assert!(arrivals.next().is_none());
    }
}

/// Random changes of bytes never cause a panic, and arrivals that are read are in order.
#[test]
fn corrupted_files_never_cause_a_panic() {
    let mut state = 20_261_122_u64;
    let mut below = |bound: usize| {
        state = state
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        usize::try_from((state >> 33) % bound as u64).unwrap()
    };
    let interesting = b",\"\n\r0123456789-.eE:{}[] \xFF\x00ax";
    let (mut errors, mut read) = (0, 0);
    for name in FILES {
        let whole = bytes(name);
        for round in 0..400 {
            let mut spoiled = whole.clone();
            for _ in 0..=below(4) {
                let at = below(spoiled.len());
                match below(3) {
                    0 => spoiled[at] = interesting[below(interesting.len())],
                    1 => spoiled.insert(at, interesting[below(interesting.len())]),
                    _ => {
                        let end = (at + 1 + below(8)).min(spoiled.len());
                        spoiled.drain(at..end);
                    }
                }
            }
            match open(&Source::bytes("FILE", &spoiled), &options()) {
                Ok(workload) => {
                    let functions = workload.functions.len();
                    let mut last = None;
                    // A count may have become large.
                    for arrival in workload.arrivals.take(10_000) {
                        let arrival = arrival.unwrap();
                        assert!(Some(arrival.at) >= last, "{name} {round}");
                        assert!((arrival.function as usize) < functions, "{name} {round}");
                        last = Some(arrival.at);
                    }
                    read += 1;
                }
                Err(error) => {
                    assert!(error.to_string().starts_with("FILE: "), "{name} {round}");
                    errors += 1;
                }
            }
        }
    }
    assert!(errors > 200 && read > 200, "{errors} {read}");
}
