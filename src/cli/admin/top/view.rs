//! The screen of `heddle top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

use super::model::{
    ConnRow, ExportRow, Order, PortRow, Sample, WorkerRow, conns, exports, ports, short, workers,
};

/// Everything on the screen.
pub(super) struct View {
    pub(super) order: Order,
    /// Connections scrolled past at the top.
    pub(super) skip: usize,
    /// The error of the last sample, if it failed.
    pub(super) trouble: Option<String>,
}

/// Columns of the tables, and their minimum widths.
const WORKER: [&str; 7] =
    ["worker", "busy", "tx bit/s", "rx bit/s", "tx FPDU/s", "rx FPDU/s", "retx/s"];
const PORT: [&str; 7] = ["port", "link", "tx bit/s", "rx bit/s", "tx frm/s", "rx frm/s", "lost/s"];
const EXPORT: [&str; 7] = ["export", "at", "conns", "calls/s", "read B/s", "wrtn B/s", "fail/s"];
const CONN: [&str; 7] = ["service", "remote", "tx bit/s", "rx bit/s", "srtt us", "cwnd", "retx/s"];

pub(super) fn worker_cells(w: &WorkerRow) -> [String; 7] {
    [
        w.worker.to_string(),
        format!("{:.0}%", 100.0 * w.busy),
        short(w.tx_bits),
        short(w.rx_bits),
        short(w.tx_fpdus),
        short(w.rx_fpdus),
        short(w.retransmits),
    ]
}

pub(super) fn port_cells(p: &PortRow) -> [String; 7] {
    [
        p.name.clone(),
        if p.up { "up" } else { "down" }.into(),
        short(p.tx_bits),
        short(p.rx_bits),
        short(p.tx_frames),
        short(p.rx_frames),
        short(p.lost),
    ]
}

pub(super) fn export_cells(e: &ExportRow) -> [String; 7] {
    let [rdma, tcp] = e.conns;
    [
        // The table's heading already says that the rows are NFS exports.
        e.listener.service.trim_start_matches("nfs:").to_owned(),
        e.listener.address.clone(),
        format!("{rdma}+{tcp}"),
        short(e.calls),
        short(e.read),
        short(e.written),
        short(e.failed),
    ]
}

pub(super) fn conn_cells(c: &ConnRow) -> [String; 7] {
    let tcp = c.conn.tcp.clone().unwrap_or_default();
    [
        c.conn.service.clone(),
        c.conn.remote.clone(),
        short(c.tx_bits),
        short(c.rx_bits),
        tcp.srtt_ns.map_or_else(|| "-".into(), |ns| (ns / 1000).to_string()),
        #[expect(clippy::cast_lossless, reason = "for people to read")]
        short(tcp.cwnd as f64),
        short(c.retransmits),
    ]
}

/// Headings of the tables, for code that prints the tables as text.
pub(super) const HEADS: [[&str; 7]; 4] = [WORKER, PORT, EXPORT, CONN];

impl View {
    pub(super) fn draw(&self, frame: &mut Frame<'_>, old: &Sample, new: &Sample) {
        let (workers, ports) = (workers(&old.stats, &new.stats), ports(&old.ports, &new.ports));
        let conns = conns(&old.conns, &new.conns, self.order);
        let exports = exports(&old.status, &new.status);
        let rows = |n: usize| u16::try_from(n + 2).unwrap_or(u16::MAX);
        // Connections get the remaining rows, and at least a third of the screen.
        let few = frame.area().height / 3;
        // Without exports, the screen has no export table.
        let exported = if exports.is_empty() { 0 } else { rows(exports.len()).min(few) };
        let [title, worker, port, export, conn] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(rows(workers.len()).min(few)),
            Constraint::Length(rows(ports.len()).min(few)),
            Constraint::Length(exported),
            Constraint::Min(3),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(conns.len(), &new.silent()), title);
        table(frame, worker, WORKER, workers.iter().map(worker_cells), [7, 5]);
        table(frame, port, PORT, ports.iter().map(port_cells), [7, 5]);
        if exported > 0 {
            table(frame, export, EXPORT, exports.iter().map(export_cells), [11, 20]);
        }
        let shown = conns.iter().skip(self.skip);
        table(frame, conn, CONN, shown.map(conn_cells), [12, 21]);
    }

    fn title(&self, conns: usize, silent: &[usize]) -> Line<'static> {
        let text = match (&self.trouble, silent) {
            (Some(trouble), _) => format!("heddle: {trouble}"),
            (None, [_, ..]) => {
                let silent: Vec<_> = silent.iter().map(usize::to_string).collect();
                format!("heddle: no answer of worker {}", silent.join(", "))
            }
            (None, []) => format!(
                "heddle: {conns} connections by {}   q quits, s sorts, arrows move",
                self.order.name()
            ),
        };
        Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
    }
}

fn table(
    frame: &mut Frame<'_>,
    area: Rect,
    head: [&str; 7],
    rows: impl Iterator<Item = [String; 7]>,
    [first, second]: [u16; 2],
) {
    let row = |cells: [String; 7]| {
        let cell = |(n, text): (usize, String)| {
            let text = Line::from(text);
            Cell::from(if n < 2 { text } else { text.right_aligned() })
        };
        Row::new(cells.into_iter().enumerate().map(cell))
    };
    let head = row(head.map(str::to_owned)).style(Style::new().add_modifier(Modifier::REVERSED));
    let widths = [
        Constraint::Min(first),
        Constraint::Min(second),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(7),
    ];
    let fits = usize::from(area.height);
    let table = Table::new(rows.take(fits).map(row), widths).header(head).column_spacing(1);
    frame.render_widget(table, area);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use heddle_socket::admin::{Conn, Conns, Export, Listener, Port, Ports, Stats, Status, Tcp};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn exported() -> Listener {
        let nfs = Some(Export { rdma2: 5, tcp: 1, ..Export::default() });
        let (address, service) = ("10.0.0.1:20049".into(), "nfs:/srv/data".into());
        Listener { address, service, nfs, ..Listener::default() }
    }

    fn screen(width: u16, height: u16, conns: usize, view: &View) -> Vec<String> {
        let conn = |n| Conn {
            conn: n,
            service: "ib_write_bw".into(),
            remote: format!("10.255.255.{n}:65535"),
            tcp: Some(Tcp { cwnd: 123_456, srtt_ns: Some(1_234_000), ..Tcp::default() }),
            ..Conn::default()
        };
        let sample = Sample {
            stats: Stats { workers: vec![0, 1], ..Stats::default() },
            ports: Ports {
                ports: vec![Port { name: "port0".into(), up: true, ..Port::default() }],
                ..Ports::default()
            },
            conns: Conns { conns: (0..conns as u64).map(conn).collect(), ..Conns::default() },
            status: Status { listeners: vec![exported()], ..Status::default() },
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|f| view.draw(f, &sample, &sample)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(line).collect()
    }

    const VIEW: View = View { order: Order::Number, skip: 0, trouble: None };

    #[test]
    fn test_a_small_terminal_shows_all_columns_and_as_many_connections_as_fit() {
        let lines = screen(80, 24, 100, &VIEW);
        let all = lines.join("\n");
        for what in HEADS.as_flattened() {
            assert!(all.contains(what), "{what}:\n{all}");
        }
        assert!(all.contains("10.255.255.0:65535 "), "whole:\n{all}");
        assert!(all.contains("/srv/data  ") && all.contains("5+1"), "{all}");
        assert!(all.contains("ib_write_bw") && all.contains("123.5k"), "{all}");
        assert!(lines[23].contains("10.255.255."), "the last line is of use:\n{all}");
    }

    #[test]
    fn test_view_hides_skipped_connections_and_shows_trouble() {
        let view = View { skip: 3, trouble: Some("no answer".into()), ..VIEW };
        let all = screen(80, 24, 5, &view).join("\n");
        assert!(!all.contains("10.255.255.2:") && all.contains("10.255.255.3:"), "{all}");
        assert!(all.contains("no answer"), "{all}");
    }

    #[test]
    fn test_title_names_workers_that_have_not_answered() {
        let line = VIEW.title(1, &[0, 3]);
        assert_eq!(line.to_string(), "heddle: no answer of worker 0, 3");
    }

    /// The view draws nothing outside the terminal, however small the terminal is.
    #[test]
    fn test_view_fits_a_terminal_of_any_size() {
        for (w, h) in [(1, 1), (10, 3), (80, 5), (3, 24)] {
            screen(w, h, 9, &VIEW);
        }
    }
}
