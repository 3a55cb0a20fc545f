//! Utilization of GPUs. As with the vendor's library, a sliced GPU and a MIG device do not report it.

use super::board::fixed;
use super::put_up_to;
use crate::answer::{Answer, Return, export};
use crate::handle::Handle;
use crate::layout::{FieldValue, GpmSupport, ProcessSample, Rates, Sample, Value};
use crate::pointer::{Out, Slots};
use crate::session::{Session, micros_now, with_gpu};

/// Sampling period of the video engines in µs.
const PERIOD: u32 = 167_000;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`, an unsigned number of four bytes.
const UNSIGNED: u32 = 1;

fn with_whole(handle: Handle, body: impl FnOnce(&mut Session, usize) -> Answer) -> Answer {
    with_gpu(handle, |session, gpu| {
        if session.node.is_sliced(gpu) {
            return Err(Return::NOT_SUPPORTED);
        }
        body(session, gpu)
    })
}

/// Writes 0 for an engine that a software GPU lacks.
fn engine(device: Handle, percent: Out<u32>, period: Out<u32>) -> Answer {
    with_whole(device, |_, _| {
        percent.put(0)?;
        period.put(PERIOD)
    })
}

export! {
    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: Out<Rates>) {
        with_whole(device, |session, gpu| {
            let busy = session.busy(gpu)?;
            rates.put(Rates {
                gpu: busy.sms,
                memory: busy.memory,
            })
        })
    }

    fn nvmlDeviceGetEncoderUtilization(device: Handle, percent: Out<u32>, period: Out<u32>) {
        engine(device, percent, period)
    }

    fn nvmlDeviceGetDecoderUtilization(device: Handle, percent: Out<u32>, period: Out<u32>) {
        engine(device, percent, period)
    }

    fn nvmlDeviceGetJpgUtilization(device: Handle, percent: Out<u32>, period: Out<u32>) {
        engine(device, percent, period)
    }

    fn nvmlDeviceGetOfaUtilization(device: Handle, percent: Out<u32>, period: Out<u32>) {
        engine(device, percent, period)
    }

    fn nvmlDeviceGetEncoderStats(
        device: Handle,
        sessions: Out<u32>,
        frames: Out<u32>,
        latency: Out<u32>,
    ) {
        [sessions, frames, latency]
            .into_iter()
            .try_for_each(|out| fixed(device, out, 0))
    }

    fn nvmlDeviceGetEncoderSessions(device: Handle, count: Out<u32>, _sessions: Slots<u64>) {
        fixed(device, count, 0)
    }

    fn nvmlDeviceGetFBCSessions(device: Handle, count: Out<u32>, _sessions: Slots<u64>) {
        fixed(device, count, 0)
    }

    /// Returns one sample of the current value: power, utilization of SMs or memory, SM clock, or memory clock.
    fn nvmlDeviceGetSamples(
        device: Handle,
        kind: u32,
        since: u64,
        value_kind: Out<u32>,
        count: Out<u32>,
        samples: Slots<Sample>,
    ) {
        with_whole(device, |session, gpu| {
            let busy = session.busy(gpu)?;
            let facts = session.node.facts(gpu);
            let value = match kind {
                0 => facts.power(busy.sms),
                1 => busy.sms,
                2 => busy.memory,
                5 => facts.clock(busy.sms),
                6 => facts.clock_memory,
                3 | 4 | 7..=10 => return Err(Return::NOT_SUPPORTED),
                _ => return Err(Return::INVALID_ARGUMENT),
            };
            let time = micros_now();
            if time <= since {
                return Err(Return::NOT_FOUND);
            }
            value_kind.put(UNSIGNED)?;
            put_up_to(count, samples, &[Sample { timeStamp: time, sampleValue: Value { ullVal: value.into() } }])
        })
    }

    /// Returns each process's share between the two latest calls at least 0.1 s apart; fails before the second.
    fn nvmlDeviceGetProcessUtilization(
        device: Handle,
        samples: Slots<ProcessSample>,
        count: Out<u32>,
        since: u64,
    ) {
        with_whole(device, |session, gpu| {
            let shares = session.shares(gpu, since)?;
            if shares.is_empty() {
                return Err(Return::NOT_FOUND);
            }
            let found: Vec<_> = shares
                .into_iter()
                .map(|share| ProcessSample {
                    pid: share.pid,
                    timeStamp: share.time,
                    smUtil: share.percent,
                    memUtil: 0,
                    encUtil: 0,
                    decUtil: 0,
                })
                .collect();
            samples.put_counted(count, &found)
        })
    }

    /// Marks each field as NOT_SUPPORTED.
    fn nvmlDeviceGetFieldValues(device: Handle, count: i32, values: Slots<FieldValue>) {
        with_gpu(device, |_, _| {
            let count = usize::try_from(count).map_err(|_| Return::INVALID_ARGUMENT)?;
            if count == 0 {
                return Err(Return::INVALID_ARGUMENT);
            }
            let time = i64::try_from(micros_now()).unwrap_or(i64::MAX);
            values.change(count, |value| {
                *value = FieldValue {
                    timestamp: time,
                    latencyUsec: 0,
                    valueType: UNSIGNED,
                    nvmlReturn: Return::NOT_SUPPORTED.0,
                    value: Value { ullVal: 0 },
                    ..*value
                };
            })
        })
    }

    /// Returns that GPM is not supported.
    fn nvmlGpmQueryDeviceSupport(device: Handle, support: Out<GpmSupport>) {
        with_gpu(device, |_, _| {
            let version = support.get()?.version;
            if version != 1 {
                return Err(Return::ARGUMENT_VERSION_MISMATCH);
            }
            support.put(GpmSupport {
                version,
                isSupportedDevice: 0,
            })
        })
    }
}
