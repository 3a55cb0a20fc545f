//! Attacks by clients that do not read answers, and by uploads to a user container that does not read.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Size of each unread answer or body, in bytes.
const BYTES: usize = 100_000_000;
/// Number of connections of an attack over HTTP/2.
const CONNECTIONS: usize = 20;
/// Number of streams on each connection of an attack over HTTP/2.
const STREAMS: u32 = 100;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Largest flow-control window, RFC 9113 6.9.1.
const WINDOW_MAX: u32 = (1 << 31) - 1;
/// Payload of a DATA frame of an upload, in bytes.
const DATA_BYTES: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attack {
    /// HTTP/1 clients that send requests and never read.
    Readers,
    /// HTTP/2 clients with a window of zero for each stream.
    Windows,
    /// HTTP/2 clients with the largest windows that read nothing.
    Stalled,
    /// HTTP/2 clients that read nothing of answers in small pieces.
    Trickle,
    /// HTTP/1 clients that send bodies to a user container that does not read.
    Uploads,
    /// HTTP/2 clients that send bodies to a user container that does not read.
    Uploads2,
    /// Upgraded connections with a client that never reads.
    Tunnels,
}

impl Attack {
    pub(crate) const ALL: [Self; 7] = [
        Self::Readers,
        Self::Windows,
        Self::Stalled,
        Self::Trickle,
        Self::Uploads,
        Self::Uploads2,
        Self::Tunnels,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Readers => "readers",
            Self::Windows => "windows",
            Self::Stalled => "stalled",
            Self::Trickle => "trickle",
            Self::Uploads => "uploads",
            Self::Uploads2 => "uploads2",
            Self::Tunnels => "tunnels",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|attack| attack.name() == name)
    }

    /// Opens all connections; they stay open until the result is dropped.
    pub(crate) async fn begin(
        self,
        proxy: SocketAddr,
        readers: usize,
    ) -> anyhow::Result<JoinSet<()>> {
        let is_http1 = matches!(self, Self::Readers | Self::Uploads | Self::Tunnels);
        let count = if is_http1 { readers } else { CONNECTIONS };
        let mut attackers = JoinSet::new();
        for _ in 0..count {
            let mut stream = TcpStream::connect(proxy).await?;
            stream.set_nodelay(true)?;
            let begin = self.begin_of_connection();
            attackers.spawn(async move {
                if stream.write_all(&begin).await.is_ok() {
                    self.go_on(&mut stream).await;
                    std::future::pending::<()>().await;
                }
            });
        }
        Ok(attackers)
    }

    fn begin_of_connection(self) -> Vec<u8> {
        match self {
            Self::Readers => format!("GET /{BYTES} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes(),
            Self::Tunnels => {
                b"GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: flood\r\n\r\n"
                    .to_vec()
            }
            Self::Uploads => {
                format!("POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: {BYTES}\r\n\r\n")
                    .into_bytes()
            }
            Self::Windows => {
                let settings = frame(4, 0, 0, &setting(4, 0));
                self.streams([PREFACE, &settings].concat())
            }
            Self::Stalled | Self::Trickle => {
                let settings = frame(4, 0, 0, &setting(4, WINDOW_MAX));
                let more = (WINDOW_MAX - 65_535).to_be_bytes();
                let update = frame(8, 0, 0, &more);
                self.streams([PREFACE, &settings, &update].concat())
            }
            Self::Uploads2 => self.streams([PREFACE, &frame(4, 0, 0, &[])].concat()),
        }
    }

    /// Appends the heads of all streams.
    fn streams(self, mut bytes: Vec<u8>) -> Vec<u8> {
        let (method, path, flags) = match self {
            Self::Uploads2 => (0x83, "/ignore".to_owned(), 4),
            Self::Trickle => (0x82, format!("/crumbs/{BYTES}"), 5),
            _ => (0x82, format!("/{BYTES}"), 5),
        };
        // :method, :scheme http, :path and :authority as literals that are not indexed.
        let length = u8::try_from(path.len()).expect("a short path");
        let mut head = vec![method, 0x86, 0x04, length];
        head.extend(path.as_bytes());
        head.extend([0x01, 1, b'a']);
        for stream in 0..STREAMS {
            bytes.extend(frame(1, flags, stream * 2 + 1, &head));
        }
        bytes
    }

    async fn go_on(self, stream: &mut TcpStream) {
        match self {
            Self::Uploads => {
                let piece = vec![b'x'; 64 * 1024];
                while stream.write_all(&piece).await.is_ok() {}
            }
            Self::Uploads2 => {
                // As much as the connection's initial window allows, then as updates allow.
                let (mut read, mut write) = stream.split();
                let mut sink = tokio::io::sink();
                let _read = tokio::join!(tokio::io::copy(&mut read, &mut sink), async {
                    let data = vec![b'x'; DATA_BYTES];
                    for round in 0_u32.. {
                        // A window is 64 KiB at least; exceeding it would end the connection.
                        let is_last = round == 3;
                        let size = if is_last { DATA_BYTES - 1 } else { DATA_BYTES };
                        for id in 0..STREAMS {
                            let data = frame(0, 0, id * 2 + 1, &data[..size]);
                            if write.write_all(&data).await.is_err() {
                                return;
                            }
                        }
                        if is_last {
                            return;
                        }
                    }
                });
            }
            _ => {}
        }
    }
}

fn setting(name: u8, value: u32) -> Vec<u8> {
    [&[0, name][..], &value.to_be_bytes()].concat()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame").to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
