//! Floods of HTTP/2 frames (RFC 9113 10.5), written byte by byte.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use tests::app2::App2;
use tests::client::Client;
use tests::client2::{Client2, empty, full};

use crate::{Watched, proxy};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest time until a flood is noticed.
const FLOOD_MAX: Duration = Duration::from_secs(60);
/// `:method GET`, `:scheme http`, `:path /`, `:authority a` (not indexed, without Huffman coding).
const HEAD: &[u8] = &[0x82, 0x86, 0x84, 0x01, 1, b'a'];

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn headers(stream: u32, flags: u8) -> Vec<u8> {
    frame(1, flags, stream, HEAD)
}

/// Writes the preface and then `piece(n)` for `n` below `count`, until closed; reads nothing.
async fn flood(watched: &Watched, count: u32, piece: impl Fn(u32) -> Vec<u8>) {
    let mut client = Client::connect(watched.proxy.address()).await;
    client.send([PREFACE, &frame(4, 0, 0, &[])].concat()).await;
    let writing = async {
        for n in 0..count {
            if client.try_send(piece(n)).await.is_err() {
                return;
            }
        }
    };
    // A server that stops reading has defended itself as well.
    let _stalled = tokio::time::timeout(Duration::from_secs(10), writing).await;
}

/// Floods each program from several clients at the same time.
async fn attack(count: u32, piece: impl Fn(u32) -> Vec<u8>) {
    for watched in Watched::each(10).await {
        let one = || flood(&watched, count, &piece);
        tokio::join!(one(), one(), one(), one());
        watched.end_well().await;
    }
}

#[tokio::test]
async fn rapid_reset() {
    attack(20_000, |n| {
        let stream = n * 2 + 1;
        [headers(stream, 5), frame(3, 0, stream, &[0, 0, 0, 8])].concat()
    })
    .await;
}

#[tokio::test]
async fn continuation_without_end() {
    attack(20_000, |n| {
        if n == 0 {
            headers(1, 1)
        } else {
            frame(9, 0, 1, &[0, 1, b'x', 1, b'y'].repeat(100))
        }
    })
    .await;
}

#[tokio::test]
async fn settings() {
    attack(200_000, |_| frame(4, 0, 0, &[0, 4, 0, 1, 0, 0])).await;
}

#[tokio::test]
async fn pings() {
    attack(200_000, |_| frame(6, 0, 0, &[7; 8])).await;
}

/// Writes these frames repeatedly until the connection is closed; returns the last received frame.
async fn last_frame_after(watched: &Watched, piece: Vec<u8>) -> Vec<u8> {
    let stream = TcpStream::connect(watched.proxy.address()).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    let begin = [PREFACE, &frame(4, 0, 0, &[]), &headers(1, 4)].concat();
    write.write_all(&begin).await.unwrap();
    // More than a second's worth in one piece, which is read completely, so that no byte is unread when the connection is closed:
    // unread bytes would cause a reset, and the last frame sent would be lost.
    let writing = tokio::spawn(async move {
        let many = piece.repeat(1_100);
        while write.write_all(&many).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut last = Vec::new();
    let reading = async {
        loop {
            let mut head = [0; 9];
            if read.read_exact(&mut head).await.is_err() {
                return;
            }
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            if read.read_exact(&mut payload).await.is_err() {
                return;
            }
            last = [&head[..], &payload].concat();
        }
    };
    let ended = tokio::time::timeout(FLOOD_MAX, reading).await;
    assert!(ended.is_ok(), "the connection is open after {FLOOD_MAX:?}");
    writing.abort();
    last
}

#[tokio::test]
async fn endless_frames_without_a_request_get_enhance_your_calm() {
    for watched in Watched::each(0).await {
        for piece in [
            frame(6, 0, 0, &[7; 8]),
            frame(2, 0, 3, &[0, 0, 0, 0, 16]),
            frame(4, 0, 0, &[]),
            frame(0x42, 0, 0, &[7; 8]),
        ] {
            let kind = piece[3];
            let last = last_frame_after(&watched, piece).await;
            // Stream 1 may have been served; the error code is ENHANCE_YOUR_CALM.
            let goaway = frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0xB]);
            assert_eq!(last, goaway, "frames of type {kind}");
        }
        watched.end_well().await;
    }
}

#[tokio::test]
async fn empty_data() {
    attack(200_000, |n| {
        if n == 0 {
            headers(1, 4)
        } else {
            frame(0, 0, 1, &[])
        }
    })
    .await;
}

#[tokio::test]
async fn window_updates() {
    attack(100_000, |_| frame(8, 0, 0, &[0x7F, 0xFF, 0xFF, 0xFF])).await;
}

#[tokio::test]
async fn oversize_frames() {
    attack(3, |_| frame(0, 0, 1, &vec![0; 2 << 20])).await;
}

#[tokio::test]
async fn streams_beyond_the_limit() {
    attack(5_000, |n| headers(n * 2 + 1, 4)).await;
}

#[tokio::test]
async fn malformed_frames_of_every_kind() {
    attack(300, |n| {
        let byte = u8::try_from(n % 256).unwrap();
        frame(byte, byte.wrapping_mul(7), n, &[byte; 40])
    })
    .await;
}

#[tokio::test]
async fn a_bomb_of_indexed_headers() {
    // One entry of 4 kB in the dynamic table, then referenced repeatedly.
    let mut block = HEAD.to_vec();
    block.extend([0x40, 1, b'x', 0x7F, 0x81, 0x1E]);
    block.extend([b'y'; 4000]);
    block.extend([0xBE; 12_000]);
    attack(20, |n| frame(1, 5, n * 2 + 1, &block)).await;
}

#[tokio::test]
async fn more_headers_than_a_map_can_hold_are_refused_either_way() {
    let app = App2::serving(|request| async move {
        let mut response = http::Response::new(full("x"));
        if request.uri().path() == "/many" {
            for n in 0..24_570 {
                let name = http::HeaderName::try_from(format!("h{n:x}")).unwrap();
                response.headers_mut().insert(name, 1.into());
            }
        }
        response
    })
    .await;
    for deadlines in [false, true] {
        let mut builder = proxy(app.port).concurrency(4);
        if deadlines {
            builder = builder.set("WEIR_SLO", "1s");
        }
        let proxy = builder.start().await;
        for count in [1_001, 24_570, 24_576] {
            let mut client = Client2::connect(proxy.address()).await;
            let mut request = client.builder("GET", "/").body(empty()).unwrap();
            for n in 0..count.min(24_570) {
                let name = http::HeaderName::try_from(format!("h{n:x}")).unwrap();
                request.headers_mut().insert(name, 1.into());
            }
            match client.send(request).await {
                Ok(response) => assert_eq!(response.status(), 431),
                // Requests above the announced limit may be reset.
                Err(error) => assert!(count > 1_001, "{count}: {error}"),
            }
        }
        let mut client = Client2::connect(proxy.address()).await;
        let (head, _) = client.get("/many").await;
        assert_eq!(head.status, 502);
        assert!(!proxy.stderr().contains("panicked"), "{}", proxy.stderr());
    }
}
