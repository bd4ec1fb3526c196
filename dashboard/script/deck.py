"""What Streamlit runs for every interaction.

It stands apart from `pages/`, which Streamlit would otherwise take for its own kind of pages and offer before ours.
"""

from dashboard.app import main

main()
