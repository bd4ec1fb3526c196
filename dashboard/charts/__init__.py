"""Charts: pure functions from pandas frames to Plotly figures. No Streamlit here, so figures are tested by value."""
