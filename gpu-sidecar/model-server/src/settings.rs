//! Settings: options of the command line, with the environment variable next to each as the fallback.
//!
//! | option | variable | meaning | default |
//! |---|---|---|---|
//! | `--port N` | `PORT` | port to listen on; 0: any free port, printed as `listening on 127.0.0.1:34567` | required |
//! | `--bind IP` | `MODEL_BIND` | address to listen on | 127.0.0.1 |
//! | `--device D` | `MODEL_DEVICE` | `gpu`: through the CUDA driver; `cpu`: waits for the service time | `gpu` with a model, weights or kernels, else `cpu` |
//! | `--gpu N` | `MODEL_GPU` | index among the visible GPUs | 0 |
//! | `--model NAME` | `MODEL_NAME` | a model of the table | none |
//! | `--weights SIZE` | `MODEL_WEIGHTS` | bytes of weights, such as `1GiB` | the model's, else 0 |
//! | `--kernels LIST` | `MODEL_KERNELS` | kernels of a request, such as `40x250us,1x2ms` | the model's, else none |
//! | `--law LAW` | `MODEL_LAW` | law of the speed by share of SMs: `linear`, or `saturating:0.24`, `knee:…`, `amdahl:…`, `power:…` | the model's, else `linear` |
//! | `--interference F` | `MODEL_INTERFERENCE` | slowdown by each concurrent process | the model's, else 0 |
//! | `--input-bytes SIZE` | `MODEL_INPUT_BYTES` | bytes that a request copies to the device | the model's, else 4 KiB |
//! | `--output-bytes SIZE` | `MODEL_OUTPUT_BYTES` | bytes that a request copies back | the model's, else 4 KiB |
//! | | `MODEL_FIXED_US` | µs per request, in addition to the kernels above | 0 |
//! | | `MODEL_INPUT_NS` | ns per unit of input, likewise | 0 |
//! | | `MODEL_OUTPUT_NS` | ns per unit of output, likewise | 0 |
//! | `--piece TIME` | `MODEL_PIECE` | longest kernel for the cost of these three variables | 1ms |
//! | `--batch N` | `MODEL_BATCH` | maximum number of requests per batch | 1 |
//! | `--batch-wait TIME` | `MODEL_BATCH_WAIT` | longest wait of the first request of a batch for others | 0ms |
//! | `--batch-growth F` | `MODEL_BATCH_GROWTH` | time added by each further request, as a part of its own time | 0.25 |
//! | `--concurrency N` | `MODEL_CONCURRENCY` | number of concurrent batches, each on its own thread and stream | 1 |
//! | `--check N` | `MODEL_CHECK` | number of blocks of weights that a batch checks, in rotation; or `all` | 1 |
//! | `--touch WAY` | `MODEL_TOUCH` | how kernels read the weights: `none`; `order`: all blocks in order, for the checksum; `hidden`: as `order`, through a table of addresses in device memory | `none` |
//! | `--change SIZE` | `MODEL_CHANGE` | bytes of state that a batch reads and writes anew, for each of the concurrent batches; `--verify` checks that it is what the batch before has written | 0 |
//! | `--verify` | `MODEL_VERIFY=true` | compare each checksum with the expected one | no |
//! | `--drain TIME` | `MODEL_DRAIN` | time for running requests to finish after SIGTERM | 10s |
//! | `--bytes K` | `WEIR_BYTES_SCALE` | divisor of all sizes above, as of a software GPU's | 1 |
//! | `--time D` | `WEIR_TIME_SCALE` | divisor of reported times, which a software GPU multiplies | 1 |

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use clap::Parser;
use kernels::Law;

use crate::cost::{Cost, SERVICE_MAX};
use crate::models::{Group, Model};
use crate::plan::Planner;
use crate::touch::Touch;
use crate::units;

/// Maximum number of kernels of a model.
const KERNELS_MAX: u64 = 100_000;
/// Largest size of weights, in bytes: more than the memory of any computer.
const BYTES_MAX: u64 = 1 << 42;
/// Largest size of an input or answer, in bytes.
const IO_BYTES_MAX: u64 = 1 << 28;

/// A small inference server: loads a model's weights and launches its kernels through the CUDA driver.
#[derive(Debug, Default, Parser)]
#[command(name = "model-server", version, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// Port to listen on; 0 for any free port (PORT)
    #[arg(long, value_name = "N")]
    port: Option<String>,
    /// Address to listen on (MODEL_BIND; default 127.0.0.1)
    #[arg(long, value_name = "IP")]
    bind: Option<String>,
    /// `gpu` or `cpu` (MODEL_DEVICE; default gpu with a model, weights or kernels, else cpu)
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// Index among the visible GPUs (MODEL_GPU; default 0)
    #[arg(long, value_name = "N")]
    gpu: Option<String>,
    /// A model of --list-models (MODEL_NAME)
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Print the table of models
    #[arg(long)]
    pub(crate) list_models: bool,
    /// Bytes of weights, such as 1GiB (MODEL_WEIGHTS)
    #[arg(long, value_name = "SIZE")]
    weights: Option<String>,
    /// Kernels of a request, such as 40x250us,1x2ms (MODEL_KERNELS)
    #[arg(long, value_name = "LIST")]
    kernels: Option<String>,
    /// Law of the kernels' speed by share of SMs: linear, or saturating, knee, amdahl or power with a parameter such as knee:0.33
    /// (MODEL_LAW)
    #[arg(long, value_name = "LAW")]
    law: Option<String>,
    /// Slowdown of the kernels by each concurrent process, 0 to 1 (MODEL_INTERFERENCE)
    #[arg(long, value_name = "F")]
    interference: Option<String>,
    /// Bytes that a request copies to the device (MODEL_INPUT_BYTES)
    #[arg(long, value_name = "SIZE")]
    input_bytes: Option<String>,
    /// Bytes that a request copies back (MODEL_OUTPUT_BYTES)
    #[arg(long, value_name = "SIZE")]
    output_bytes: Option<String>,
    /// Longest kernel for MODEL_FIXED_US, _INPUT_NS and _OUTPUT_NS (MODEL_PIECE; default 1ms)
    #[arg(long, value_name = "TIME")]
    piece: Option<String>,
    /// Maximum number of requests per batch (MODEL_BATCH; default 1)
    #[arg(long, value_name = "N")]
    batch: Option<String>,
    /// Longest wait of a batch's first request for others (MODEL_BATCH_WAIT; default 0ms)
    #[arg(long, value_name = "TIME")]
    batch_wait: Option<String>,
    /// Time added by each further request of a batch, as a part of its own time, 0 to 1 (MODEL_BATCH_GROWTH; default 0.25)
    #[arg(long, value_name = "F")]
    batch_growth: Option<String>,
    /// Number of concurrent batches (MODEL_CONCURRENCY; default 1)
    #[arg(long, value_name = "N")]
    concurrency: Option<String>,
    /// Number of blocks of weights that a batch checks, or all (MODEL_CHECK; default 1)
    #[arg(long, value_name = "N")]
    check: Option<String>,
    /// How kernels read the weights: none, order or hidden, through a table in device memory (MODEL_TOUCH; default none)
    #[arg(long, value_name = "WAY")]
    touch: Option<String>,
    /// Bytes of state that a batch reads and writes anew (MODEL_CHANGE; default 0)
    #[arg(long, value_name = "SIZE")]
    change: Option<String>,
    /// Compare each checksum with the expected one (MODEL_VERIFY=true)
    #[arg(long)]
    verify: bool,
    /// Time for running requests to finish after SIGTERM (MODEL_DRAIN; default 10s)
    #[arg(long, value_name = "TIME")]
    drain: Option<String>,
    /// Divisor of all sizes (WEIR_BYTES_SCALE; default 1)
    #[arg(long, value_name = "K")]
    bytes: Option<String>,
    /// Divisor of reported times (WEIR_TIME_SCALE; default 1)
    #[arg(long, value_name = "D")]
    time: Option<String>,
}

/// Device that runs the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// No device: the server waits for the time that the kernels would take.
    Cpu,
    /// Index of the GPU that runs the kernels.
    Gpu(u32),
}

/// All settings of the server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) port: u16,
    pub(crate) bind: IpAddr,
    pub(crate) device: Device,
    pub(crate) planner: Planner,
    pub(crate) batch: usize,
    pub(crate) batch_wait: Duration,
    pub(crate) concurrency: usize,
    /// Number of blocks checked per batch, limited to those of the model.
    pub(crate) check: usize,
    pub(crate) touch: Touch,
    /// Bytes of state that a batch changes.
    pub(crate) change: u64,
    pub(crate) verify: bool,
    pub(crate) drain: Duration,
    pub(crate) bytes_scale: u64,
    pub(crate) time_scale: u32,
}

/// Lookup of values in options and environment variables, with the source in error messages.
struct Sources<V> {
    variable: V,
}

impl<V: Fn(&str) -> Option<String>> Sources<V> {
    /// Returns the value of the option, else of the variable, parsed by `read`; otherwise an error with the `allowed` values.
    fn get<T>(
        &self,
        option: (&str, Option<String>),
        variable: &str,
        allowed: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let (name, value) = match (option, (self.variable)(variable)) {
            ((name, Some(value)), _) => (name, value),
            ((_, None), Some(value)) => (variable, value),
            ((_, None), None) => return Ok(None),
        };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(format!("{name}={value:?}: allowed: {allowed}")),
        }
    }

    fn number(
        &self,
        option: (&str, Option<String>),
        variable: &str,
        (min, max): (u64, u64),
    ) -> Result<Option<u64>, String> {
        let allowed = format!("a whole number from {min} to {max}");
        self.get(option, variable, &allowed, |text| {
            text.parse().ok().filter(|n| (min..=max).contains(n))
        })
    }

    fn size(
        &self,
        option: (&str, Option<String>),
        variable: &str,
        max: u64,
    ) -> Result<Option<u64>, String> {
        let allowed = format!("a size such as 4KiB or 1.5GiB, at most {} MiB", max >> 20);
        self.get(option, variable, &allowed, |text| {
            units::bytes(text).filter(|&bytes| bytes <= max)
        })
    }

    fn time(
        &self,
        option: (&str, Option<String>),
        variable: &str,
        (min, max): (Duration, Duration),
    ) -> Result<Option<Duration>, String> {
        let allowed = format!("a time such as 250us or 1.5s, from {min:?} to {max:?}");
        self.get(option, variable, &allowed, |text| {
            let time = Duration::from_nanos(units::nanoseconds(text)?);
            (min..=max).contains(&time).then_some(time)
        })
    }

    fn share(&self, option: (&str, Option<String>), variable: &str) -> Result<Option<u32>, String> {
        self.get(option, variable, "a number from 0 to 1", units::millionths)
    }
}

/// Reads and validates arguments and environment.
///
/// # Errors
/// Returns a text with the name, the value and the allowed values of the first invalid setting.
pub(crate) fn settings(
    arguments: Arguments,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Settings, String> {
    let Arguments {
        port,
        bind,
        device,
        gpu,
        model,
        list_models: _,
        weights,
        kernels,
        law,
        interference,
        input_bytes,
        output_bytes,
        piece,
        batch,
        batch_wait,
        batch_growth,
        concurrency,
        check,
        touch,
        change,
        verify,
        drain,
        bytes,
        time,
    } = arguments;
    let sources = Sources { variable };
    let whole = |name: &str| {
        sources.get(("", None), name, "a whole number", |text| {
            text.parse::<u64>().ok()
        })
    };

    let port = sources.get(("--port", port), "PORT", "a port number", |text| {
        text.parse().ok()
    })?;
    let port = port.ok_or("PORT is not set")?;
    let bind = sources.get(("--bind", bind), "MODEL_BIND", "an IP address", |text| {
        text.parse().ok()
    })?;

    let names: Vec<_> = Model::names().collect();
    let allowed = format!("one of {}", names.join(", "));
    let named = sources.get(("--model", model), "MODEL_NAME", &allowed, Model::named)?;
    let weights = sources.size(("--weights", weights), "MODEL_WEIGHTS", BYTES_MAX)?;
    let allowed =
        format!("a list such as 40x250us,1x2ms of at most {KERNELS_MAX} kernels and 10 minutes");
    let groups = sources.get(("--kernels", kernels), "MODEL_KERNELS", &allowed, groups)?;
    let is_given = named.is_some() || weights.is_some() || groups.is_some();
    let mut model = named.unwrap_or_else(Model::generic);
    if let Some(weights) = weights {
        model.weights_bytes = weights;
    }
    if let Some(groups) = groups {
        model.kernels = groups;
    }
    let allowed = "linear, or saturating, knee, amdahl or power with a share such as knee:0.33";
    if let Some(law) = sources.get(("--law", law), "MODEL_LAW", allowed, self::law)? {
        model.law = law;
    }
    if let Some(share) = sources.share(("--interference", interference), "MODEL_INTERFERENCE")? {
        model.interference_millionths = share;
    }
    let input = ("--input-bytes", input_bytes);
    if let Some(bytes) = sources.size(input, "MODEL_INPUT_BYTES", IO_BYTES_MAX)? {
        model.input_bytes = bytes;
    }
    let output = ("--output-bytes", output_bytes);
    if let Some(bytes) = sources.size(output, "MODEL_OUTPUT_BYTES", IO_BYTES_MAX)? {
        model.output_bytes = bytes;
    }

    let gpu = sources.number(("--gpu", gpu), "MODEL_GPU", (0, 255))?;
    let gpu = u32::try_from(gpu.unwrap_or(0)).unwrap_or(u32::MAX);
    let device = sources.get(
        ("--device", device),
        "MODEL_DEVICE",
        "gpu or cpu",
        |text| match text {
            "gpu" => Some(Device::Gpu(gpu)),
            "cpu" => Some(Device::Cpu),
            _ => None,
        },
    )?;
    let device = device.unwrap_or(if is_given {
        Device::Gpu(gpu)
    } else {
        Device::Cpu
    });

    let cost = Cost {
        fixed_ns: whole("MODEL_FIXED_US")?.unwrap_or(0).saturating_mul(1_000),
        per_input_ns: whole("MODEL_INPUT_NS")?.unwrap_or(0),
        per_output_ns: whole("MODEL_OUTPUT_NS")?.unwrap_or(0),
    };
    let range = (Duration::from_micros(10), SERVICE_MAX);
    let piece = sources.time(("--piece", piece), "MODEL_PIECE", range)?;
    let piece = piece.unwrap_or(Duration::from_millis(1));
    let growth = sources.share(("--batch-growth", batch_growth), "MODEL_BATCH_GROWTH")?;
    let planner = Planner {
        model,
        cost,
        piece_ns: u64::try_from(piece.as_nanos()).unwrap_or(u64::MAX),
        growth_millionths: growth.unwrap_or(250_000),
    };

    let batch = sources.number(("--batch", batch), "MODEL_BATCH", (1, 1_024))?;
    let range = (Duration::ZERO, Duration::from_secs(60));
    let batch_wait = sources.time(("--batch-wait", batch_wait), "MODEL_BATCH_WAIT", range)?;
    let concurrency = ("--concurrency", concurrency);
    let concurrency = sources.number(concurrency, "MODEL_CONCURRENCY", (1, 128))?;
    let check = sources.get(
        ("--check", check),
        "MODEL_CHECK",
        "a number of blocks or all",
        |text| match text {
            "all" => Some(usize::MAX),
            number => number.parse().ok(),
        },
    )?;
    let touch = sources.get(
        ("--touch", touch),
        "MODEL_TOUCH",
        "none, order or hidden",
        Touch::named,
    )?;
    let touch = touch.unwrap_or_default();
    let check = match check {
        Some(number) if touch.reads() && number != usize::MAX => {
            return Err(format!(
                "--check or MODEL_CHECK is {number}: allowed: all, since --touch or MODEL_TOUCH has kernels read all blocks"
            ));
        }
        None if touch.reads() => Some(usize::MAX),
        check => check,
    };
    let change = sources.size(("--change", change), "MODEL_CHANGE", BYTES_MAX)?;
    let change = change.unwrap_or(0);
    if change > 0 && device == Device::Cpu {
        return Err(
            "--change or MODEL_CHANGE: allowed: 0 with the device cpu, which has no memory"
                .to_owned(),
        );
    }
    let is_verifying = sources.get(("", None), "MODEL_VERIFY", "true or false", |text| {
        text.parse().ok()
    })?;
    let range = (Duration::ZERO, Duration::from_secs(3_600));
    let drain = sources.time(("--drain", drain), "MODEL_DRAIN", range)?;
    let bytes_scale = sources.number(("--bytes", bytes), "WEIR_BYTES_SCALE", (1, 4_096))?;
    let time_scale = sources.number(("--time", time), "WEIR_TIME_SCALE", (1, 1_000))?;
    Ok(Settings {
        port,
        bind: bind.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        device,
        planner,
        batch: small(batch, 1),
        batch_wait: batch_wait.unwrap_or_default(),
        concurrency: small(concurrency, 1),
        check: check.unwrap_or(1),
        touch,
        change,
        verify: verify || is_verifying.unwrap_or(false),
        drain: drain.unwrap_or(Duration::from_secs(10)),
        bytes_scale: bytes_scale.unwrap_or(1),
        time_scale: time_scale
            .and_then(|scale| u32::try_from(scale).ok())
            .unwrap_or(1),
    })
}

fn small(value: Option<u64>, default: usize) -> usize {
    value
        .and_then(|value| usize::try_from(value).ok())
        .unwrap_or(default)
}

/// Parses a list of kernels such as `40x250us,1x2ms`.
fn groups(text: &str) -> Option<Vec<Group>> {
    let mut groups = Vec::new();
    let (mut count, mut nanos) = (0_u64, 0_u64);
    for part in text.split(',') {
        let (number, time) = part.split_once('x')?;
        let group = Group {
            count: number.parse().ok().filter(|&count| count > 0)?,
            ns: units::nanoseconds(time)?,
        };
        count += u64::from(group.count);
        nanos = nanos.checked_add(group.ns.checked_mul(u64::from(group.count))?)?;
        if count > KERNELS_MAX {
            return None;
        }
        groups.push(group);
    }
    (u128::from(nanos) <= SERVICE_MAX.as_nanos()).then_some(groups)
}

/// Parses a law such as `knee:0.33`.
fn law(text: &str) -> Option<Law> {
    let (name, parameter) = text.split_once(':').unwrap_or((text, "0"));
    let number = match name {
        "linear" if !text.contains(':') => 0,
        "saturating" => 1,
        "knee" => 2,
        "amdahl" => 3,
        "power" => 4,
        _ => return None,
    };
    if number > 0 && !text.contains(':') {
        return None;
    }
    Law::decode(number, units::millionths(parameter)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Settings, String> {
        read(&[], pairs)
    }

    fn read(arguments: &[&str], pairs: &[(&str, &str)]) -> Result<Settings, String> {
        let program = std::iter::once(&"model-server");
        let arguments = Arguments::try_parse_from(program.chain(arguments)).unwrap();
        settings(arguments, |name| {
            let found = pairs.iter().find(|(own, _)| *own == name);
            match (found, name) {
                (Some((_, value)), _) => Some((*value).to_owned()),
                (None, "PORT") => Some("1".to_owned()),
                _ => None,
            }
        })
    }

    #[test]
    fn errors_contain_the_setting_and_the_allowed_values() {
        let error = settings(Arguments::default(), |_| None).unwrap_err();
        assert_eq!(error, "PORT is not set");
        for (name, value, why) in [
            ("PORT", "http", "PORT=\"http\": allowed: a port number"),
            (
                "MODEL_INPUT_NS",
                "-1",
                "MODEL_INPUT_NS=\"-1\": allowed: a whole number",
            ),
            (
                "MODEL_BATCH",
                "0",
                "MODEL_BATCH=\"0\": allowed: a whole number from 1 to 1024",
            ),
            (
                "MODEL_DEVICE",
                "tpu",
                "MODEL_DEVICE=\"tpu\": allowed: gpu or cpu",
            ),
            (
                "MODEL_BATCH_WAIT",
                "5",
                "MODEL_BATCH_WAIT=\"5\": allowed: a time such as 250us or 1.5s, from 0ns to 60s",
            ),
            (
                "MODEL_WEIGHTS",
                "1GB!",
                "MODEL_WEIGHTS=\"1GB!\": allowed: a size such as 4KiB or 1.5GiB, at most 4194304 MiB",
            ),
            (
                "MODEL_LAW",
                "knee",
                "MODEL_LAW=\"knee\": allowed: linear, or saturating, knee, amdahl or power with a share such as knee:0.33",
            ),
            (
                "WEIR_BYTES_SCALE",
                "0",
                "WEIR_BYTES_SCALE=\"0\": allowed: a whole number from 1 to 4096",
            ),
        ] {
            assert_eq!(with(&[(name, value)]).unwrap_err(), why);
        }
        let error = with(&[("MODEL_NAME", "alexnet")]).unwrap_err();
        assert!(error.contains("one of densenet-169, ") && error.ends_with(", bert"));
        let error = read(&["--check", "some"], &[("MODEL_CHECK", "2")]).unwrap_err();
        assert_eq!(
            error,
            "--check=\"some\": allowed: a number of blocks or all"
        );
    }

    #[test]
    fn changed_state_needs_a_gpu() {
        let settings = read(&["--weights", "1MiB", "--change", "1.5MiB"], &[]).unwrap();
        assert_eq!(settings.change, 3 << 19);
        assert_eq!(read(&[], &[("MODEL_CHANGE", "0")]).unwrap().change, 0);
        let error = read(&[], &[("MODEL_CHANGE", "4KiB")]).unwrap_err();
        assert_eq!(
            error,
            "--change or MODEL_CHANGE: allowed: 0 with the device cpu, which has no memory"
        );
    }

    #[test]
    fn kernels_that_read_the_weights_read_all_of_them() {
        let settings = with(&[("MODEL_TOUCH", "hidden")]).unwrap();
        assert_eq!(
            (settings.touch, settings.check),
            (Touch::Hidden, usize::MAX)
        );
        let all = read(&["--touch", "order", "--check", "all"], &[]).unwrap();
        assert_eq!((all.touch, all.check), (Touch::Order, usize::MAX));
        let none = read(&["--touch", "none", "--check", "3"], &[]).unwrap();
        assert_eq!((none.touch, none.check), (Touch::None, 3));
        let error = read(&["--touch", "order", "--check", "3"], &[]).unwrap_err();
        assert_eq!(
            error,
            "--check or MODEL_CHECK is 3: allowed: all, since --touch or MODEL_TOUCH has kernels read all blocks"
        );
        let error = with(&[("MODEL_TOUCH", "some")]).unwrap_err();
        assert_eq!(
            error,
            "MODEL_TOUCH=\"some\": allowed: none, order or hidden"
        );
    }

    #[test]
    fn costs_without_a_model_use_the_cpu() {
        let settings = with(&[("MODEL_FIXED_US", "2"), ("MODEL_OUTPUT_NS", "7")]).unwrap();
        assert_eq!(settings.device, Device::Cpu);
        assert_eq!(settings.planner.cost.fixed_ns, 2_000);
        assert_eq!(settings.planner.cost.per_output_ns, 7);
        assert_eq!(settings.planner.model.weights_bytes, 0);
        assert_eq!(settings.bind, IpAddr::from([127, 0, 0, 1]));
        assert_eq!((settings.batch, settings.concurrency), (1, 1));
    }

    #[test]
    fn a_model_weights_or_kernels_select_the_gpu() {
        for pair in [
            ("MODEL_NAME", "resnet-50"),
            ("MODEL_WEIGHTS", "1GiB"),
            ("MODEL_KERNELS", "40x250us"),
            ("MODEL_DEVICE", "gpu"),
        ] {
            assert_eq!(with(&[pair]).unwrap().device, Device::Gpu(0), "{pair:?}");
        }
        let settings = read(
            &["--device", "cpu", "--model", "gnmt", "--gpu", "3"],
            &[("MODEL_DEVICE", "gpu"), ("MODEL_NAME", "no such model")],
        );
        let settings = settings.unwrap();
        // An option overrides its variable, which is then not even read.
        assert_eq!(settings.device, Device::Cpu);
        assert_eq!(settings.planner.model.name, "gnmt");
        let settings = with(&[("MODEL_NAME", "gnmt"), ("MODEL_GPU", "3")]).unwrap();
        assert_eq!(settings.device, Device::Gpu(3));
    }

    #[test]
    fn properties_of_a_model_can_be_overridden() {
        let model = read(
            &["--weights", "1GiB", "--kernels", "40x250us,1x2ms"],
            &[
                ("MODEL_NAME", "resnet-50"),
                ("MODEL_LAW", "amdahl:0.633"),
                ("MODEL_INTERFERENCE", "0.1"),
                ("MODEL_INPUT_BYTES", "1MiB"),
            ],
        );
        let model = model.unwrap().planner.model;
        assert_eq!(model.weights_bytes, 1 << 30);
        assert_eq!(model.kernels_ns(), 12_000_000);
        assert_eq!(model.kernel_count(), 41);
        let law = Law::Amdahl {
            serial_millionths: 633_000,
        };
        assert_eq!((model.law, model.interference_millionths), (law, 100_000));
        assert_eq!((model.input_bytes, model.output_bytes), (1 << 20, 4_000));
    }

    #[test]
    fn lists_of_kernels_are_bounded() {
        for wrong in [
            "",
            "40",
            "0x1ms",
            "40x",
            "x1ms",
            "4x1ms,",
            "100001x1us",
            "2x301s",
            "-1x1ms",
            "4294967295x18446744073s",
        ] {
            assert_eq!(groups(wrong), None, "{wrong}");
        }
        assert_eq!(groups("100000x0ns").unwrap().len(), 1);
        assert_eq!(law("linear:0.5"), None);
        assert_eq!(law("knee:0"), None);
        assert_eq!(law("power:0").unwrap().encode(), (4, 0));
    }
}
