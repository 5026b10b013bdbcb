//! Tables as kubectl prints them: three spaces between columns, none at the end of a line.

use comfy_table::{Table, presets};

pub(super) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
